"""Pieces of the sentences that refuse settings, and what they suggest of the installed recipes and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.inputs import Input
from rlcore.api.part_config import BatchConfig
from rlcore.api.records import Algorithm, Kind
from rlcore.api.run_config import RunConfig
from rlcore.config.layers import Setting
from rlcore.plugins.registry import Registry


def as_flag(value: Any) -> str:
    """A value as the user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unread(run: RunConfig, names: tuple[str, ...], reason: str) -> Iterator[str]:
    """A complaint about each of the settings `names` that is not empty, 0 or false: nothing reads it, for
    `reason`.
    """
    for name in names:
        value = run.values()[name]
        if value:
            yield f"{flag_name(name)}: found {as_flag(value)}, but {reason}."


def unread_flags(settings: Mapping[str, Setting], names: tuple[str, ...], reason: str) -> Iterator[str]:
    """Like `unread`, for settings whose default is not empty, such as a learning rate.

    Only a flag shows that the user meant it. A file may be the output of `--dry-run`, which holds every
    setting.
    """
    for name in names:
        setting = settings.get(name)
        if setting is not None and not setting.layer.label:
            yield f"{flag_name(name)}: found {as_flag(setting.value)}, but {reason}."


@dataclass(frozen=True)
class Suggestions:
    """Each method gives the end of a sentence: `; add --algo x or --algo y`, or that no plugin offers any."""

    registry: Registry

    def recipes_with(self, kind: Kind, *others: str) -> str:
        """The recipes that have a part of `kind`; `others`: flags that would do as well."""
        return _add([f"--algo {recipe.name}" for recipe in self._recipes() if recipe.parts.get(kind)], others)

    def recipes_reading(self, column: Input, *others: str) -> str:
        """The recipes with a part that reads `column`; `others`: flags that would do as well."""
        close = [
            recipe.name
            for recipe in self._recipes()
            for kind, parts in recipe.parts.items()
            for part in ([parts] if isinstance(parts, str) else parts)
            if self._reads((Kind(kind), part), column)
        ]
        return _add([f"--algo {name}" for name in dict.fromkeys(close)], others)

    def parts(self, kind: Kind, *others: str) -> str:
        """The parts of `kind`; `others`: flags that would do as well."""
        return _add([f"{flag_name(kind)} {name}" for name in self.registry.names(kind)], others)

    def parts_reading(self, kind: Kind, column: Input, *others: str) -> str:
        """The parts of `kind` that read `column`; `others`: flags that would do as well."""
        names = [name for name in self.registry.names(kind) if self._reads((kind, name), column)]
        return _add([f"{flag_name(kind)} {name}" for name in names], others)

    def _recipes(self) -> Iterator[Algorithm]:
        for entry in self.registry.entries(Kind.ALGORITHM):
            assert isinstance(entry.record, Algorithm)
            yield entry.record

    def _reads(self, part: tuple[Kind, str], column: Input) -> bool:
        kind, name = part
        entries = (entry for entry in self.registry.entries(kind) if entry.record.name == name)
        configs = (entry.config for entry in entries)
        return any(issubclass(config, BatchConfig) and column in config.needs for config in configs)


def _add(offers: Iterable[str], others: Iterable[str]) -> str:
    flags = [*offers, *others]
    return f"; add {' or '.join(flags)}" if flags else "; no installed plugin offers any"
