"""What a plugin of kind `generator` implements, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.api.packed import Packed, PackedFloats, PackedInts, TokenFloats, TokenIds, pack
from rlcore.api.types import GenerationStatus, Prompt, Sample, Sampling, Span

if TYPE_CHECKING:
    from rlcore.api.tokens import Tokenizer


_PACKED: Mapping[str, type[Packed[Any]]] = {"token_ids": PackedInts, "log_probs": PackedFloats}
_STATUS: Mapping[str, GenerationStatus] = {
    "stop": GenerationStatus.COMPLETED,
    "length": GenerationStatus.TRUNCATED,
    "abort": GenerationStatus.ABORTED,
}


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer of an engine. `token_ids`: what was sampled, the stop token included.

    `log_probs` (same length) are of the policy at the sampling temperature, before top-p, top-k or min-p cut
    the distribution. Both sequences may be given as tuples; like those of a `Sample` they are held packed.
    `finish_reason`: "stop", "length" or "abort". `routed_experts`: the experts that the engine chose for
    every token of prompt and answer except the last, which it never reads. Base64 of little-endian int32
    [tokens - 1, layers, K], as engines send it; rlcore decodes it when it makes the batch. Empty where nobody
    asked for it.
    """

    token_ids: TokenIds
    log_probs: TokenFloats
    text: str
    finish_reason: str
    spans: tuple[Span, ...]
    prompt_tokens: int
    routed_experts: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        # By its dictionary: the dataclass is frozen.
        pack(self.__dict__, _PACKED)

    @property
    def status(self) -> GenerationStatus:
        """Of a sample that ends with this answer: COMPLETED, TRUNCATED or ABORTED."""
        return _STATUS[self.finish_reason]


class GenerationContext(Protocol):
    """What a generator may use. Lives in the event loop of the generator, in the driver or in a
    rollout worker; one for all samples of a rollout."""

    @property
    def sampling(self) -> Sampling:
        """How this rollout samples (greedy for evaluation)."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and response together that engine and trainer take."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's, for `rlcore.render_prompt` and its siblings: chat templates, tool calls."""

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, seed: int, rid: str, sampling: Sampling | None = None
    ) -> Sequence[Completion]:
        """`n` completions of one prompt. The engine computes the prompt once."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of one group with `reward_status` set by the run's reward, and `score` where it is
        SCORED.
        """

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""


class Generator(Protocol):
    """Kind `generator`: drives the engine through one trajectory.

    rlcore builds it before it starts any process, and once more in each rollout worker. The factory raises
    `UserError` for what the user can mend, and starts nothing itself. An exception of `generate` counts as a
    crash and fails the group. For a failure that is not the generator's fault, return a sample with the
    status FAILED and a `failure`.
    """

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """`sample` with response, mask, log-probs, spans and status filled in.

        A list of samples is one trajectory in pieces; all keep the `rollout_id`. A generator may score its
        samples. If all samples of a group come SCORED, the run's reward is not asked.
        """


@runtime_checkable
class CheckingGenerator(Protocol):
    """A generator that cannot answer every prompt, or needs something of the tokenizer."""

    def check(self, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
        """Raises `UserError` if it cannot. Called with each set of prompts, before any process starts."""


@runtime_checkable
class ClosableGenerator(Protocol):
    """A generator that holds processes or connections."""

    async def close(self) -> None:
        """Release them. Called in the event loop of `generate` when the run ends, also after an error."""


@runtime_checkable
class GroupGenerator(Protocol):
    """A generator that makes all samples of a group at once, for example by one request with `n`."""

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """The group's samples, filled in, in their order."""


class GenerationClient(Protocol):
    """An engine that answers: `rlcore.EngineClient`."""

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> Sequence[Completion]:
        """`n` completions. Raises `EngineError` if the engine cannot give them.

        `session`: "NAME/N" asks the engine to begin the N requests of that name together, so that it computes
        the same batches in every run. An engine that cannot ignores it.
        """

    async def abort(self) -> None:
        """End every request of the engine. Each answers with the tokens that it has sampled so far."""


class GroupScorer(Protocol):
    """Rewards in their own processes: `rlcore.rollout.rewards.RewardPool`."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The siblings of one group with `reward_status` and `score` set; a failure is a status."""
