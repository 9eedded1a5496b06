"""TOML in and out.

In a file, `name` inside a table is the choice of the part that the table sets up (`[loss]` with
`name = "ppo_clip"`); `loss = "ppo_clip"` is the short form where nothing else is set. `[filter]` holds the
list of filters under `name` and the settings of each in `[filter.NAME]`, and so does `[correction]`. `"none"`
stands for None.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlcore.errors import ConfigError

CHOICE = "name"
"""The key of a table that holds the choice of its part."""

NESTED = ("filter", "correction")
"""The tables of tables."""

NONE = "none"
"""None, which TOML lacks."""


def read(path: Path, asked: str = "--config") -> dict[str, Any]:
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

    Only `[filter]` and `[correction]` hold tables of settings; elsewhere a table in a table is the value of
    one setting.
    """
    for table, value in tree.items():
        if not isinstance(value, Mapping):
            yield table, value
            continue
        for key, item in value.items():
            if key == CHOICE:
                yield table, item
            elif table in NESTED and isinstance(item, Mapping):
                yield from ((f"{table}.{key}.{inner}", setting) for inner, setting in item.items())
            else:
                yield f"{table}.{key}", item


def dump(flat: Mapping[str, Any]) -> str:
    """The inverse of `flatten`, as TOML text."""
    import tomli_w

    heads = {name.partition(".")[0] for name in flat if "." in name}
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
