"""Pieces of the sentences that refuse settings."""

from collections.abc import Iterator
from typing import Any

from rlcore.config.layers import flag_name
from rlcore.config.run import RunConfig


def said(value: Any) -> str:
    """A value as the user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unread(run: RunConfig, names: tuple[str, ...], reason: str) -> Iterator[str]:
    """Of the settings `names`, those that were given although nothing reads them, for `reason`."""
    for name in names:
        value = getattr(run, name)
        if value:
            yield f"{flag_name(name)}: found {said(value)}, but {reason}."
