"""What the parts of an algorithm implement. Nothing here imports torch: a config may look at it.

Shape suffixes: B samples, R response tokens of all samples of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.api.batch import TrainBatch


@dataclass(frozen=True, kw_only=True)
class AdvantageOutput:
    """The result of an estimator that reads a critic: advantages, and the returns for the critic to learn."""

    advantages: Tensor
    returns: Tensor


class AdvantageEstimator(Protocol):
    """Kind `advantage`: sees the whole batch, however many ranks share it."""

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        """Advantages, float32 [R]; with returns (float32 [R]) where the run has a critic.

        `batch.per_sample["reward"]` float32 [B], `batch.per_sample["group"]` and `["rollout"]` int64 [B];
        `batch.per_token["rewards"]` float32 [R] (a scalar reward sits on the last live token) and
        `["loss_mask"]` float32 [R]; the columns (`rlcore.Input`) that the part's config `needs`.
        """


@dataclass(frozen=True, kw_only=True)
class CorrectionInputs:
    """What a correction sees of a micro-batch: whole samples, response tokens only, and no gradient.

    `log_probs` [R]: the trainer's now. `old_log_probs` [R]: the trainer's before the update.
    `rollout_log_probs` [R]: the engine's. `advantages` [R]. `mask` [R]: 0 or 1. `segments` int64 [R]: the
    sample of each token. `samples` = B. `batch`: every further column.
    """

    log_probs: Tensor
    old_log_probs: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    mask: Tensor
    segments: Tensor
    samples: int
    batch: TrainBatch


@dataclass(frozen=True, kw_only=True)
class LossInputs(CorrectionInputs):
    """What a loss sees of a micro-batch: the same columns, and more.

    Here `log_probs` [R] carries the gradient. `entropy` [R]: if the run asks for it. `top_log_probs` [R, K],
    with gradient: if the loss's config has `top_tokens`.

    For responses that the data give, old and rollout log-probs are `log_probs` without gradient, and the
    advantages are 0. For pairs, `batch.per_sample["chosen"]` int64 [B] is 1 for the chosen response of a
    `group` and 0 for the rejected one.
    """

    entropy: Tensor | None
    top_log_probs: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """`per_token` [R]: the loss of each token. Core applies mask and denominator, and sums.

    `metrics`: named values [R], logged as `train/<name>`, averaged over live tokens. `weighted`: likewise,
    but averaged with the weights that the loss has for its tokens.
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

    `values` [R] carries the gradient: the critic's value of the state before each token. `old_values` [R]:
    the same before the update. `returns` [R]: what the values should be. `mask` [R]: 0 or 1. `batch`: every
    further column.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    mask: Tensor
    batch: TrainBatch


class ValueLoss(Protocol):
    """Kind `value_loss`: the critic's loss of each token, which core averages over live tokens.

    Metrics are logged as `critic/<name>`.
    """

    def __call__(self, inputs: ValueInputs) -> LossOutput: ...


@dataclass(frozen=True, kw_only=True)
class TokenWeights:
    """`weights` [R], at least 0: the factor on each token's loss; 0 leaves the token out.

    Denominators do not change with the weights. `metrics`: as those of `LossOutput`.
    """

    weights: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class Correction(Protocol):
    """Kind `correction`: weighs tokens that an older policy, or an engine with other numerics, has
    sampled.
    """

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        """A pure function of each sample, which must not depend on the other samples of the micro-batch.

        For a value that does, such as a mean over the batch, implement `BatchColumns` too.
        """


@runtime_checkable
class BatchColumns(Protocol):
    """For a loss or a correction that needs a value of the whole batch, whose micro-batches it sees one by
    one.
    """

    def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
        """Columns [R] under names of the part's own, which it later finds in `inputs.batch.per_token`.

        Called once a step with the whole batch, on the CPU, before any update. The batch has the advantages
        in `per_token["advantages"]`, the mini-batch of each sample in `per_sample["minibatch"]`, and the
        columns that the part's config `needs`.
        """
