"""Pieces of the sentences that refuse settings."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError
from rlcore.api.run_config import RunConfig
from rlcore.config.layers import Setting


def refuse(complaints: Iterable[str]) -> None:
    """`ConfigError` with the first of `complaints`; none: there is nothing to refuse."""
    for sentence in complaints:
        raise ConfigError(sentence)


def as_flag(value: Any) -> str:
    """A value as the user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unread(run: RunConfig, names: Iterable[str], reason: str) -> Iterator[str]:
    """A complaint about each of the settings `names` that does not have its default: nothing reads it,
    for `reason`.
    """
    for name in names:
        if not run.is_default(name):
            yield f"{flag_name(name)}: found {as_flag(run.values()[name])}, but {reason}."


def unread_flags(settings: Mapping[str, Setting], names: Iterable[str], reason: str) -> Iterator[str]:
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
