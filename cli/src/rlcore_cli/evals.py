"""From a file and flags to the evaluations of a selection."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.api.records import NAME, Kind
from rlcore.compose import lookup
from rlcore.compose.evals import EVAL, PARTS, EvalChoice
from rlcore.compose.lookup import DATA, TASK
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.plugins.registry import Registry

_SOURCE = re.compile(rf"{EVAL}\.(?P<name>[^.]+)\.({DATA}|{TASK})")


def without_short_forms(layer: Layer, registry: Registry) -> Layer:
    """`layer` with the short forms written out.

    `--eval NAME=VALUE`, and `eval.NAME = VALUE` in a file, become `eval.NAME.data`, or `eval.NAME.task` where
    VALUE is a task. Raises `ConfigError`, also where two evaluations have one name.
    """
    values: dict[str, Any] = {}
    written_as = dict(layer.written_as)
    sources: dict[str, tuple[str, Any]] = {}
    for key, value in layer.values.items():
        for setting, where in _plain(key, value, layer, registry):
            values[setting] = where
            if setting != key:
                written_as[setting] = key
            if (match := _SOURCE.fullmatch(setting)) is None:
                continue
            first = sources.setdefault(match["name"], (setting, where))
            if first != (setting, where):
                both = f"{layers.shown(first[1])} and {layers.shown(where)}"
                raise ConfigError(f"{layer.at(key)}: {both} are both named {match['name']!r}; rename one.")
    return replace(layer, values=values, written_as=written_as)


def _plain(key: str, value: Any, layer: Layer, registry: Registry) -> Iterator[tuple[str, Any]]:
    """The settings that `key` of `layer` stands for."""
    if key == EVAL:
        for item in value if isinstance(value, list | tuple) else [value]:
            name, _, where = str(item).partition("=")
            if not (where and NAME.fullmatch(name)):
                raise ConfigError(
                    f"{layer.at(key)}: found {layers.shown(item)}, expected NAME=PATH or NAME=TASK, with a "
                    "name of lower-case letters, digits and underscores."
                )
            yield f"{EVAL}.{name}.{_kind_of(where, registry)}", where
    elif key.startswith(f"{EVAL}.") and key.count(".") == 1:
        if not isinstance(value, str):
            raise ConfigError(f"{layer.at(key)}: found {layers.shown(value)}, expected a path or a task.")
        yield f"{key}.{_kind_of(value, registry)}", value
    else:
        yield key, value


def _kind_of(where: str, registry: Registry) -> str:
    # A file that has the name of a task is meant, since the user has put it there.
    if Path(where).exists():
        return DATA
    # A bare word is a misspelt task rather than a file that is missing.
    return TASK if where in registry.names(Kind.SOURCE) or NAME.fullmatch(where) else DATA


def choose(registry: Registry, stack: Sequence[Layer]) -> tuple[EvalChoice, ...]:
    """The evaluations of the layers (`without_short_forms`, weakest first), in the order of their names.

    Raises `UserError` for one without data, or with an unknown part.
    """
    settings, choices = layers.merge(stack), []
    for name in _names(stack):
        source = lookup.strongest(stack, *_source_keys(name))
        if source is None:
            first = next(key for key in settings if key.startswith(f"{EVAL}.{name}."))
            at = settings[first].layer.at(first)
            raise ConfigError(f"{at}: the evaluation {name!r} has no data; add --eval {name}=PATH.")
        key, setting = source
        if key.endswith(f".{DATA}"):
            lookup.text_of(key, setting)  # one file: a set is no mix
            entry = lookup.find_data(registry, key, setting)
        else:
            entry = lookup.find_task(registry, key, setting, "name a file with --eval NAME=PATH")
        parts = {
            kind: lookup.find_entry(registry, kind, full, settings[full])
            for kind in PARTS
            if (full := f"{EVAL}.{name}.{kind}") in settings
        }
        choices.append(EvalChoice(name=name, source=entry, parts=parts))
    return tuple(choices)


def _names(stack: Iterable[Layer]) -> list[str]:
    keys = [key.split(".") for layer in stack for key in layer.values]
    settings = [key for key in keys if key[0] == EVAL and len(key) > 2]
    # `--eval.a.samples 8` may stand before `--eval a=PATH`; the flags that make the sets give the order.
    makers = [key for key in settings if key[2] in (DATA, TASK)]
    return list(dict.fromkeys(key[1] for key in (*makers, *settings)))


def _source_keys(name: str) -> tuple[str, str]:
    """The two settings that say what the evaluation asks; the strongest layer that has either decides."""
    return f"{EVAL}.{name}.{TASK}", f"{EVAL}.{name}.{DATA}"


def lost_tables(layer: Layer, stack: Sequence[Layer]) -> list[str]:
    """Prefixes of the settings in `layer` that are for a part which a stronger layer has replaced."""
    merged, gone = layers.merge(stack), []
    for name in _names([layer]):
        table = f"{EVAL}.{name}"
        if lookup.is_replaced(layer, stack, *_source_keys(name)):
            gone.append(f"{table}.source.")
        for kind in PARTS:
            key = f"{table}.{kind}"
            if key in layer.values and layer.values[key] != merged[key].value:
                gone.append(f"{key}.")
    return gone
