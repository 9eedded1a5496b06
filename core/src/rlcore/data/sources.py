"""What a plugin of kind `source` implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from rlcore.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What a source offers: prompts to train on, and named held-out sets to evaluate on.

    Both may be lazy sequences. The order is the source's; core shuffles with an exact, resumable cursor.
    """

    train: Sequence[Prompt]
    held_out: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)


class PromptSource(Protocol):
    """Kind `source`: where prompts come from."""

    def prompts(self) -> Prompts:
        """Raises `DataError` naming file, line and reason where a row is malformed."""
        ...


@runtime_checkable
class FileBackedSource(Protocol):
    """A source whose prompts stand in files: a run that goes on refuses files that have changed."""

    def files(self) -> Sequence[str]:
        """Paths and URLs of the prompts to train on."""
        ...


@runtime_checkable
class ResponseSource(Protocol):
    """A source that knows right answers, for recipes that train on given responses."""

    def with_responses(self) -> Prompts:
        """The same, each prompt to train on with one entry in its `responses`."""
        ...


@runtime_checkable
class PairSource(Protocol):
    """A source that knows better and worse answers, for recipes that train on given pairs."""

    def with_pairs(self) -> Prompts:
        """The same, each prompt to train on with `responses` (chosen, rejected)."""
        ...
