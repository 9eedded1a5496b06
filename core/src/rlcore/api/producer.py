"""What a plugin of kind `producer` implements: it makes the rollouts of a run, as a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlcore.api.generation import GenerationClient, Generator, GroupScorer
from rlcore.api.run_config import RunConfig
from rlcore.api.scoring import Filter
from rlcore.api.sources import Cursor
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import Group, Json, Prompt

if TYPE_CHECKING:
    from rlcore.api.batch import TrainBatch


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The groups of one step, by group id; there may be none. `version`: the weights to train with them.

    `metrics`: flat `rollout/…`, `reward/…` and `time/…` values. `batch`: what is trained on, in place of the
    groups.
    """

    step: int
    version: int
    groups: tuple[Group, ...]
    metrics: Mapping[str, float]
    batch: TrainBatch | None = None


class Producer(Protocol):
    """Makes the rollouts of a run, in the driver's event loop. The loop is its one consumer.

    Its factory is called as `factory(config, context=ProducerContext)`.
    """

    @property
    def samples(self) -> bool:
        """Whether engines sample for it, which need the weights of every step."""
        ...

    def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`.

        Asking for one means that all earlier ones were trained on and their weights published. What was
        drawn and not handed over when it is closed must be in `state`. The metrics of a rollout have at least
        `time/rollout_s` and `rollout/response_tokens`; a rollout may have no groups.
        """
        ...

    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        """Within, the engines take up `version`."""
        ...

    def published(self, version: int) -> None:
        """The engines hold `version` without a publication: the last rollout had no groups."""
        ...

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Within, nothing is generated, and `state` holds all that was."""
        ...

    def state(self) -> Mapping[str, Json]:
        """What `load` needs, as JSON: no prompt may be lost or doubled by saving here and going on there."""
        ...

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        ...


class PromptEncoder(Protocol):
    """Prompts to token ids."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the run's model."""
        ...

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """`DataError` naming the prompt where it has no tokens or too many, or the chat template fails."""
        ...


@dataclass(frozen=True, kw_only=True)
class ProducerContext:
    """What a run has for its producer. Without engines (`clients`), there is nothing to sample with.

    `cursor`: what prompts are drawn from. `version`: of the weights that the engines hold first.
    `baseline`: a greedy response is made beside each group, for its reward.
    """

    run: RunConfig
    cursor: Cursor
    encoder: PromptEncoder
    clients: Sequence[GenerationClient]
    generator: Generator
    rewards: GroupScorer
    filters: Sequence[Filter]
    version: int
    baseline: bool
