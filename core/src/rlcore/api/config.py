"""The base of every config table: frozen, bounded, explained, unknown keys refused."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from typing_extensions import TypeIs

from rlcore.api.diagnosis import Diagnosis

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The form of every name that users or plugins give: of parts, evaluations, frozen models, parts of a
score.
"""


class Config(BaseModel):
    """One table of settings.

    Each field has a default (unless the user must choose), bounds, and one line of help as its
    `description`. Instances are frozen; a changed copy is made by `model_copy(update=…)` through validation.
    """

    # defer_build: a command reads the fields of every class, and validates few of them.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def diagnose(self) -> Iterable[Diagnosis]:
        """What the part needs of this machine, for `rlcore doctor`: packages, programs, servers.

        It may import packages and ask servers as the part would, but must answer within seconds. A
        `UserError` that it raises counts as a finding.
        """
        return ()


def absolute_path(path: str | None) -> str | None:
    """For a field's validator: the absolute path, which a run finds again when it is resumed from another
    folder.

    Symbolic links stay as they are: the interpreter of a virtual environment is one.
    """
    return None if path is None else os.path.abspath(path)


def flag_name(name: str) -> str:
    """`loss.clip_high` → `--loss.clip-high`."""
    return "--" + name.replace("_", "-")


def fields_of(config: type[Config]) -> dict[str, FieldInfo]:
    """Name → field of every setting. A field that is a `Config` is a group: its fields stand for it."""
    fields: dict[str, FieldInfo] = {}
    for name, field in config.model_fields.items():
        group = field.annotation
        fields |= fields_of(group) if is_group(group) else {name: field}
    return fields


def nested(config: type[Config], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat `settings` as pydantic validates them: each within its group, the others at the top."""
    raw = dict(settings)
    for name, field in config.model_fields.items():
        group = field.annotation
        if is_group(group):
            raw[name] = {key: raw.pop(key) for key in group.model_fields if key in raw}
    return raw


def is_group(annotation: Any) -> TypeIs[type[Config]]:
    """Whether a field of that type is a group of settings."""
    return isinstance(annotation, type) and issubclass(annotation, Config)
