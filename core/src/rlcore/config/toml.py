"""TOML in and out.

In a file, `name` inside a table is the choice of the part that the table sets up (`[loss]` with
`name = "ppo_clip"`); `loss = "ppo_clip"` is the short form where nothing else is set. `[filter]` holds the
list of filters under `name` and the settings of each in `[filter.NAME]`, and so do the tables of all kinds
of which a run has several. `[frozen]` holds models by their names, or their list under `name`, and the
fields of each in `[frozen.NAME]`; `[engine_group]` does so for engines. Each `[eval.NAME]` holds an
evaluation, and tables of its own parts.
`"none"` is None.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.api.errors import ConfigError

CHOICE = "name"
"""The key of a table that holds the choice of its part."""

NESTED: Mapping[str, int] = {
    "filter": 2,
    "correction": 2,
    "reward": 2,
    "model_hook": 2,
    "tracker": 2,
    "callback": 2,
    "eval": 3,
    "frozen": 2,
    "engine_group": 2,
    "critic": 2,
    "reference": 2,
    "teacher": 2,
}
"""The tables of tables of settings, and how deep they go; every other table goes 1 deep."""

NONE = "none"
"""None, which TOML lacks."""


def read_settings(path: Path, asked: str = "--config") -> dict[str, Any]:
    """The flat settings of a file: `steps`, `loss` (a choice), `loss.clip_high`, `filter.zero_std.eps`.

    `asked`: the flag that named the file, for the error. Raises `ConfigError`.
    """
    try:
        with path.open("rb") as file:
            return dict(flatten(tomllib.load(file)))
    except OSError as error:
        raise ConfigError(f"{asked} {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{asked} {path}: found broken TOML ({error}).") from error


def flatten(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting; a table's `name` takes the name of the table.

    A table deeper than those of `NESTED` is the value of one setting.
    """
    for table, value in tree.items():
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

    heads = {name[:place] for name in flat for place, letter in enumerate(name) if letter == "."}
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *tables, key = [*name.split("."), CHOICE] if name in heads else name.split(".")
        into = tree
        for table in tables:
            into = into.setdefault(table, {})
        into[key] = _plain(value)
    return tomli_w.dumps(tree)


def _plain(value: Any) -> Any:
    if value is None:
        return NONE
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
