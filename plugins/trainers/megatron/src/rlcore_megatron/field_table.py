"""What becomes of each field of megatron-core: the table `fields.toml`, shown in docs/megatron_fields.md."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

Kind = Literal["honored", "decided", "model", "needs", "unused"]


@dataclass(frozen=True, kw_only=True)
class FieldVerdict:
    """Of one field. `why`: the reason, which ends a sentence. `flag`: the setting of rlcore in its place.

    `library`: the module that a field of kind "needs" waits for, `called` so in messages. `values`: those
    that the run has anyway, in place of megatron-core's default. `under`: the field, and its value or values,
    without which this one would have no effect.
    """

    kind: Kind
    why: str = ""
    flag: str = ""
    library: str = ""
    called: str = ""
    values: Sequence[Any] | None = None
    under: Mapping[str, Any] = field(default_factory=dict)


@functools.cache
def table() -> Mapping[str, FieldVerdict]:
    """Field → its verdict, in the order of the file."""
    read = tomllib.loads((files("rlcore_megatron") / "fields.toml").read_text())
    verdicts = {}
    for group in read["groups"]:
        kind, names = group.pop("verdict"), group.pop("names")
        verdicts.update(
            {name: FieldVerdict(kind=kind, values=read["values"].get(name), **group) for name in names}
        )
    return verdicts
