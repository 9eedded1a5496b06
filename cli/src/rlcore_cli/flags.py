"""The flags of a selection: those of the run and of its selected parts. Unselected parts have no flags."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from rlcore.api.config import Config, Table, flag_name, is_group
from rlcore.api.marks import Mark
from rlcore.api.run_config import RunConfig
from rlcore.compose.selection import Selection
from rlcore.config import layers
from rlcore.config.fields import choices, has_mark, is_list
from rlcore.config.layers import Setting


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag.

    `name`: dotted (`loss.clip_high`). `group`: its heading in the help. `metavar`: what it accepts, in a word
    or two. `default`: its value without the flag, as text. `many`: it may be repeated. `switch`: it takes no
    value. `table`: its option takes a further key, as in `--source.chat-template-kwargs.KEY`. `common`: the
    help shows it unasked.
    """

    name: str
    group: str
    help: str
    default: str
    metavar: str
    many: bool
    switch: bool
    table: bool = False
    common: bool = False

    @property
    def option(self) -> str:
        """`--loss.clip-high`."""
        return flag_name(self.name)

    @property
    def off_option(self) -> str:
        """`--no-loss.clip-high`: switches a bool off, empties a list."""
        return flag_name(f"no_{self.name}")


def flags(selection: Selection) -> Iterator[Flag]:
    """The run's flags, then those of each selected component, in the order of their fields."""
    settings = layers.merge(selection.layers)
    yield from of_config(RunConfig, "", "run", settings)
    for key, field in RunConfig.model_fields.items():
        if is_group(group := field.annotation):
            yield from of_config(group, key if issubclass(group, Table) else "", key, settings)
    for table, config, heading in selection.configs():
        yield from of_config(config, table, heading, settings, selection.chosen_otherwise())


def of_config(
    config: type[Config],
    table: str,
    group: str,
    settings: Mapping[str, Setting],
    hidden: Collection[str] = (),
    *,
    common: bool = False,
) -> Iterator[Flag]:
    """A flag for each field of `config` that is not `hidden`, and no group of further fields.

    `settings`: values that replace a field's default. `common`: all are.
    """
    for key, field in config.model_fields.items():
        name = f"{table}.{key}" if table else key
        if name in hidden or is_group(field.annotation):
            continue
        setting = settings.get(name)
        value = setting.value if setting else field.get_default(call_default_factory=True)
        yield Flag(
            name=name,
            group=group,
            help=field.description or "",
            default="required" if setting is None and field.is_required() else default_text(value),
            metavar=_metavar(field.annotation),
            many=is_list(field.annotation),
            switch=_is_bool(field.annotation),
            table=_is_table(field.annotation),
            common=common or has_mark(field, Mark.COMMON),
        )


def default_text(value: Any) -> str:
    """A default as its flag takes it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value or json.dumps(value)
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return json.dumps(value, default=str)


def _is_bool(annotation: Any) -> bool:
    """Whether a flag of it is written `--x` or `--no-x`."""
    return choices(annotation) == (bool,)


def _is_table(annotation: Any) -> bool:
    """Whether a flag of it is written `--x.KEY VALUE`, once for each key."""
    return any(get_origin(choice) is dict for choice in choices(annotation))


def _metavar(annotation: Any) -> str:
    """A word or two for what a flag takes: `INT`, `FLOAT`, `a|b`, `TEXT`."""
    kinds = choices(annotation)
    inner = get_args(kinds[0])
    if get_origin(kinds[0]) is Literal:
        return "|".join(map(str, inner))
    if is_list(annotation) and inner:
        return _metavar(inner[0])
    return {int: "INT", float: "FLOAT", Path: "PATH"}.get(kinds[0], "TEXT")
