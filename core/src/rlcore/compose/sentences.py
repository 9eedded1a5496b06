"""Pieces of the sentences that refuse settings."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.run_config import RunConfig
from rlcore.config.layers import Setting


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
