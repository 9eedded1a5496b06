"""What a plugin of kind `source` implements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, runtime_checkable

from rlcore.api.types import Json, Messages, Prompt


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """What a source offers: prompts to train on, and named held-out sets to evaluate on.

    Both may be lazy sequences. The order is the source's; core shuffles with an exact, resumable cursor.
    """

    train: Sequence[Prompt]
    held_out: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)


class Cursor(Protocol):
    """What a run draws its prompts from."""

    def take(self, n: int) -> list[tuple[Prompt, int]]:
        """The next `n` prompts, each with its epoch."""
        ...

    def learn(self, prompt_id: str, rewards: Sequence[float]) -> None:
        """A group of the prompt was scored, dropped ones included: `rewards`, one for each answer."""
        ...

    def metrics(self) -> dict[str, float]:
        """`rollout/epoch` (passes over the prompts so far, as a fraction) and what else there is to say."""
        ...

    def state(self) -> dict[str, Json]:
        """What `load` needs, as JSON."""
        ...

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        ...


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
class DrawingSource(Protocol):
    """A source that says what is drawn next: it may grow, or react to scores, while the run goes on."""

    def cursor(self, prompts: Sequence[Prompt], seed: int) -> Cursor:
        """Made once a run. `prompts`: those of `prompts().train`, which were checked before the run.

        Its `take` may return others, and never fewer than were asked for; its `state` is in every checkpoint.
        """
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


def content_hash(text: str | Messages, seed: int = 0) -> int:
    """64 bits of what is asked; the same for equal texts and for equal messages."""
    content = text if isinstance(text, str) else json.dumps(text, sort_keys=True, ensure_ascii=False)
    digest = blake2b(content.encode(), digest_size=8, salt=seed.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def content_share(content: int) -> float:
    """Where a hash lies in [0, 1)."""
    return content / 2**64
