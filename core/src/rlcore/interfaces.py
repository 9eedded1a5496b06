"""The typed seams: what each kind of plugin implements.

A component is made by calling its factory with its config. Every class here is a `Protocol`: a plugin
imports nothing from rlcore but types. Shape suffixes: B samples, R response tokens of all samples of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.types import Group, Prompt, Sample, Sampling, Score, Span

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.data.batch import TrainBatch
    from rlcore.data.tokens import Tokenizer


# --- prompts -------------------------------------------------------------------------------------------


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


# --- generation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer of an engine. `token_ids` is what was sampled, the stop token included.

    `log_probs` (same length) are of the policy at the sampling temperature, before top-p, top-k or min-p cut
    its distribution; without a cut that is what was sampled from.
    `finish_reason`: "stop", "length" or "abort".
    `routed_experts`: the experts that the engine chose for each token of prompt and answer but the last one,
    which it never took in: base64 of little-endian int32 [tokens - 1, layers, K], SGLang's own form, which is
    read where a batch is made. Empty where nobody asked for it.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    text: str
    finish_reason: str
    spans: tuple[Span, ...]
    prompt_tokens: int
    routed_experts: str = field(default="", repr=False)


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
        """The model's, for `rlcore.chat`: chat templates, tool calls."""
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


# --- reward and filter ---------------------------------------------------------------------------------


class Reward(Protocol):
    """Kind `reward`: runs in a killable worker process with a time limit. May be a `CheckedReward` too."""

    def score(self, samples: Sequence[Sample]) -> Sequence[Score]:
        """One score for each sample. `samples` are all siblings of one group, in order.

        In an evaluation, and for a greedy baseline, the group has one.
        """
        ...


class CheckedReward(Protocol):
    """A reward's factory that knows what the machine must have."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises `UserError` where the reward cannot work here. Called before any process is started."""
        ...


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`group` is what goes on (None: dropped, for `reason`, a short identifier that becomes a metric)."""

    group: Group | None
    reason: str | None = None


class Filter(Protocol):
    """Kind `filter`: judges a scored group."""

    def judge(self, group: Group) -> Verdict:
        """Keep (possibly changed) or drop with a reason."""
        ...


# --- the algorithm -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AdvantageOutput:
    """What an estimator that reads a critic gives: advantages, and the returns that the critic learns."""

    advantages: Tensor
    returns: Tensor


class AdvantageEstimator(Protocol):
    """Kind `advantage`: sees the whole batch, whatever the data-parallel size."""

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        """Advantages, float32 [R]; with returns (float32 [R]) where the run has a critic.

        `batch.per_sample["reward"]` float32 [B], `batch.per_sample["group"]` and `["rollout"]` int64 [B];
        `batch.per_token["rewards"]` float32 [R] (a scalar reward sits on the last live token) and
        `["loss_mask"]` float32 [R]; the columns (`rlcore.inputs.Input`) that the part's config `needs`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """One micro-batch of whole samples, response tokens only.

    `log_probs` [R] carries the gradient; `old_log_probs` [R] are the trainer's before the update,
    `rollout_log_probs` [R] the engine's; `advantages` [R]; `mask` [R] 0 or 1; `segments` int64 [R] the
    sample of each token; `samples` = B. `entropy` [R] is there where the run asked for it, `top_log_probs`
    [R, K], with gradient, where the loss's config has `top_tokens`. `batch` holds every further column. Where
    the responses were given, nobody sampled them: old and rollout log-probs are `log_probs`, detached, and
    the advantages 0; of pairs, `batch.per_sample["chosen"]` int64 [B] is 1 for the chosen response of its
    `group` and 0 for the rejected one.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    segments: Tensor
    samples: int
    entropy: Tensor | None
    batch: TrainBatch
    top_log_probs: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """`per_token` [R]: the loss of each token; core owns mask, denominator and sum.

    `metrics`: named values [R], logged as `train/<name>`, averaged over live tokens. `weighted`: likewise,
    but averaged as the loss is, with the weights of its tokens.
    """

    per_token: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    weighted: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """Kind `loss`: a pure function from inputs to per-token losses."""

    def __call__(self, inputs: LossInputs) -> LossOutput: ...


@dataclass(frozen=True, kw_only=True)
class ValueInputs:
    """One micro-batch of whole samples, response tokens only.

    `values` [R] carries the gradient: the critic's, of the state before each token; `old_values` [R] are
    those before the update; `returns` [R] what they should be; `mask` [R] 0 or 1. `batch` holds every
    further column.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    mask: Tensor
    batch: TrainBatch


class ValueLoss(Protocol):
    """Kind `value_loss`: what the critic is trained on, token by token; its mean is taken over live tokens.

    Metrics are logged as `critic/<name>`.
    """

    def __call__(self, inputs: ValueInputs) -> LossOutput: ...


@dataclass(frozen=True, kw_only=True)
class CorrectionInputs:
    """One micro-batch of whole samples, response tokens only; nothing here carries a gradient.

    `log_probs` [R] are the trainer's now, `old_log_probs` [R] the trainer's before the update,
    `rollout_log_probs` [R] the engine's; `advantages` [R]; `mask` [R] 0 or 1; `segments` int64 [R] the
    sample of each token; `samples` = B.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    segments: Tensor
    samples: int


@dataclass(frozen=True, kw_only=True)
class Weights:
    """`weights` [R], at least 0: what the loss of each token is multiplied by; 0 leaves the token out.

    No weight changes a denominator. `metrics`: as those of `LossOutput`.
    """

    weights: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Correction(Protocol):
    """Kind `correction`: makes up for tokens that another policy, or another engine, has sampled."""

    def weigh(self, inputs: CorrectionInputs) -> Weights:
        """A pure function of the samples themselves: it must not depend on their neighbors."""
        ...
