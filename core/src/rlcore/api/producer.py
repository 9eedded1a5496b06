"""What a plugin of kind `producer` implements: it makes the rollouts of a run, as a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlcore.api.generation import GenerationClient, Generator, GroupScorer
from rlcore.api.reward import Filter
from rlcore.api.run_config import RunConfig
from rlcore.api.sources import Cursor
from rlcore.api.tokens import Tokenizer
from rlcore.api.types import Group, Json, Prompt

if TYPE_CHECKING:
    from rlcore.api.batch import TrainBatch


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The groups of one step, ordered by group id; there may be none.

    `version`: of the weights to be trained. `metrics`: flat `rollout/…`, `reward/…` and `time/…` values.
    `batch`: what to train on instead of the groups, for a producer that makes batches itself
    (`ProducerConfig.makes_batches`). It needs `per_sample["rollout"]`: rlcore divides its rollouts into
    mini-batches anew.
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
        """Whether engines sample for it. If not, no weights are published."""

    def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`.

        When the loop asks for the next one, it has trained on all earlier ones and published the weights.
        Prompts that were drawn but not handed over when the generator is closed must be in `state`. The
        metrics of each rollout include `time/rollout_s` and `rollout/response_tokens`.
        """

    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        """While it is entered, the engines load `version`."""

    def published(self, version: int) -> None:
        """The version is now `version` although no weights changed, because the last rollout had no
        groups.
        """

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """While it is entered, nothing is generated, and `state` holds everything generated so far."""

    def state(self) -> Mapping[str, Json]:
        """What `load` needs, as JSON. A run that is saved and resumed must lose no prompt and repeat none."""

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` if the data are not the same."""


class PromptEncoder(Protocol):
    """Prompts to token ids."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run's model."""

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """`DataError` naming the prompt where it has no tokens or too many, or the chat template fails."""


@dataclass(frozen=True, kw_only=True)
class ProducerContext:
    """What a run gives its producer.

    `cursor`: where prompts are drawn. `clients`: one for each engine; empty in a run without engines.
    `version`: of the weights that the engines hold at the start. `baseline`: the recipe needs the reward of a
    greedy response beside each group. `vocabulary`: of the model, whose token ids are below it; None: its
    config.json does not tell.
    """

    run: RunConfig
    cursor: Cursor
    encoder: PromptEncoder
    clients: Sequence[GenerationClient]
    generator: Generator
    rewards: GroupScorer
    filters: Sequence[Filter] = ()
    version: int = 0
    baseline: bool = False
    vocabulary: int | None = None
