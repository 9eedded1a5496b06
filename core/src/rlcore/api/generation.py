"""What a plugin of kind `generator` implements, and what it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.api.packed import Packed, PackedFloats, PackedInts, TokenFloats, TokenIds, pack
from rlcore.api.types import Prompt, Sample, Sampling, Span

if TYPE_CHECKING:
    from rlcore.api.tokens import Tokenizer


_PACKED: Mapping[str, type[Packed[Any]]] = {"token_ids": PackedInts, "log_probs": PackedFloats}


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer of an engine. `token_ids` is what was sampled, the stop token included.

    Both sequences are given as tuples and held packed, as those of a `Sample`.

    `log_probs` (same length) are of the policy at the sampling temperature, before top-p, top-k or min-p cut
    its distribution; without a cut that is what was sampled from.
    `finish_reason`: "stop", "length" or "abort".
    `routed_experts`: the experts that the engine chose for each token of prompt and answer but the last one,
    which it never took in: base64 of little-endian int32 [tokens - 1, layers, K], as engines send it, which
    is read where a batch is made. Empty where nobody asked for it.
    """

    token_ids: TokenIds
    log_probs: TokenFloats
    text: str
    finish_reason: str
    spans: tuple[Span, ...]
    prompt_tokens: int
    routed_experts: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        pack(self.__dict__, _PACKED)


class GenerationContext(Protocol):
    """What a generator may use. Lives in the driver's event loop; one for all samples of a rollout."""

    @property
    def sampling(self) -> Sampling:
        """How this rollout samples (greedy for evaluation)."""
        ...

    @property
    def context_length(self) -> int:
        """Tokens of prompt and response together that engine and trainer take."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's, for `rlcore.render_prompt` and its siblings: chat templates, tool calls."""
        ...

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, seed: int, rid: str, sampling: Sampling | None = None
    ) -> Sequence[Completion]:
        """`n` completions of one prompt, which the engine computes once."""
        ...

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Siblings with what the run's reward says: `reward_status`, and `score` where that is SCORED."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...


class Generator(Protocol):
    """Kind `generator`: drives the engine through one trajectory.

    It is built before any process is started: its factory raises `UserError` for what the user can mend, and
    starts nothing. What `generate` raises fails the group ("crashed"); what is no fault of the generator is a
    sample with the status FAILED and a `failure`.
    """

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """`sample` with response, mask, log-probs, spans and status filled in.

        A list means that the trajectory was split; its members keep the `rollout_id`. A group whose samples
        all come SCORED is not shown to the run's reward.
        """
        ...


@runtime_checkable
class CheckingGenerator(Protocol):
    """A generator that cannot answer every prompt, or needs something of the tokenizer."""

    def check(self, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> None:
        """Raises `UserError` where it cannot; called for each set of prompts before a process starts."""
        ...


@runtime_checkable
class ClosableGenerator(Protocol):
    """A generator that holds processes or connections."""

    async def close(self) -> None:
        """Release them, in the event loop that generated, once the run has ended, however it did."""
        ...


@runtime_checkable
class GroupGenerator(Protocol):
    """A generator that can do the samples of one group in one go (one request with `n`)."""

    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """The group's samples, filled in, in their order."""
        ...


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
        """`n` completions. Raises `EngineError` where the engine cannot give them.

        `session`: "NAME/N"; an engine that can begins the N requests of that name together.
        """
        ...

    async def abort(self) -> None:
        """Ends every request of the engine; what was sampled comes back as the answer."""
        ...


class GroupScorer(Protocol):
    """Rewards in their own processes: `rlcore.rollout.rewards.RewardPool`."""

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The siblings of one group with `reward_status` and `score` set; a failure is a status."""
        ...
