"""Pieces of the sentences that refuse settings, and what they suggest of the installed recipes and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.inputs import Input
from rlcore.api.part_config import BatchConfig
from rlcore.api.records import Kind
from rlcore.api.run_config import RunConfig
from rlcore.config.layers import Setting
from rlcore.plugins.registry import Registry


def as_flag(value: Any) -> str:
    """A value as the user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unread(run: RunConfig, names: tuple[str, ...], reason: str) -> Iterator[str]:
    """A complaint about each of the settings `names` that does not have its default: nothing reads it,
    for `reason`.
    """
    for name in names:
        if not run.is_default(name):
            yield f"{flag_name(name)}: found {as_flag(run.values()[name])}, but {reason}."


def unread_flags(settings: Mapping[str, Setting], names: tuple[str, ...], reason: str) -> Iterator[str]:
    """Like `unread`, for settings such as a learning rate, which a recipe or a file may set all the same.

    Only a flag shows that the user meant it. A file may be the output of `--dry-run`, which holds every
    setting.
    """
    for name in names:
        setting = settings.get(name)
        if setting is not None and not setting.layer.label:
            yield f"{flag_name(name)}: found {as_flag(setting.value)}, but {reason}."


def to_add(flags: Iterable[str]) -> str:
    """The end of a sentence: `; add --algo x or --algo y`, or that no plugin offers any."""
    offers = " or ".join(flags)
    return f"; add {offers}" if offers else "; no installed plugin offers any"


def recipes_with(registry: Registry, kind: Kind) -> list[str]:
    """The flags of the recipes that have a part of `kind`."""
    recipes = [entry.recipe for entry in registry.entries(Kind.ALGORITHM)]
    return [f"--algo {recipe.name}" for recipe in recipes if recipe.parts.get(kind)]


def recipes_reading(registry: Registry, column: Input) -> list[str]:
    """The flags of the recipes with a part that reads `column`."""
    close = [
        recipe.name
        for recipe in (entry.recipe for entry in registry.entries(Kind.ALGORITHM))
        for kind, parts in recipe.parts.items()
        for part in ([parts] if isinstance(parts, str) else parts)
        if part in names_reading(registry, Kind(kind), column)
    ]
    return [f"--algo {name}" for name in dict.fromkeys(close)]


def names_reading(registry: Registry, kind: Kind, column: Input) -> list[str]:
    """The names of the parts of `kind` that read `column`."""
    parts = [(entry.record.name, entry.config) for entry in registry.entries(kind)]
    return [name for name, config in parts if issubclass(config, BatchConfig) and column in config.needs]
