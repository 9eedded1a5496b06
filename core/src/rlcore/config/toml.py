"""Read and write settings as TOML.

A part and its settings share a table: `[loss]` has the part's name under `name`, as in `name = "ppo_clip"`.
`loss = "ppo_clip"` is the short form for a part without settings. A kind of which a run has several parts,
such as `[filter]`, has the list of names under `name`, and the settings of each part in `[filter.NAME]`.
`[frozen]` has `NAME = MODEL` for each frozen model, and its fields in `[frozen.NAME]`; `[engine_group]` is
alike. `[eval.NAME]` has one evaluation, with tables for its own parts. `"none"` is None, which TOML lacks.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.api.config import tree_of
from rlcore.api.errors import ConfigError
from rlcore.api.records import CHOICE, LIST_KINDS
from rlcore.api.run_config import ROLES

NESTED: Mapping[str, int] = {
    **dict.fromkeys((*LIST_KINDS, "frozen", "engine_group", "policy", *ROLES), 2),
    "eval": 3,
}
"""Tables that contain tables of settings, with their depth. All other tables have depth 1."""

NONE = "none"
"""How a file writes None."""


def read_settings(path: Path, flag: str = "--config") -> dict[str, Any]:
    """The flat settings of a file: `steps`, `loss` (a choice), `loss.clip_high`, `filter.zero_std.eps`.

    Raises `ConfigError`. `flag`: the flag that names the file, for the error.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows put a mark in front
        return dict(flatten(tomllib.loads(text)))
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        way = (
            "; set a key once, and a part with a table by its `name`"
            if "overwrite a value" in str(error)
            else ""
        )
        raise ConfigError(f"{flag} {path}: found broken TOML ({error}){way}.") from error


def flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting.

    The `name` of a table becomes the value of the table's own name. A table below the depth that `NESTED`
    allows is the value of one setting.
    """
    for table, value in tree.items():
        if table == "policy" and isinstance(value, Mapping):  # an empty table is a policy all the same
            value = {name: own or {"lr": NONE} for name, own in value.items()}
        yield from _flat(table, value, NESTED.get(table, 1))


def _flat(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0 or not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        if key == CHOICE:
            yield name, item
        else:
            yield from _flat(f"{name}.{key}", item, depth - 1)


def dump_settings(flat: Mapping[str, Any]) -> str:
    """The inverse of `flatten`, as TOML text."""
    import tomli_w

    # `loss` is a value and a table at once where `loss.clip` is set too: its value moves into the table.
    heads = {name[:place] for name in flat for place, letter in enumerate(name) if letter == "."}
    named = {f"{name}.{CHOICE}" if name in heads else name: _plain(value) for name, value in flat.items()}
    return tomli_w.dumps(tree_of(named))


def _plain(value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
