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
    """The result of an estimator that reads values."""

    advantages: Tensor
    """float32 [R]."""
    returns: Tensor
    """float32 [R]: what the value model learns."""


class AdvantageEstimator(Protocol):
    """Kind `advantage`: how much better each token did than expected.

    `factory(config)` builds it in each train worker. It sees the whole batch, however many ranks share it,
    and every rank calls it with the same batch: it must be a pure function.

        >>> import torch
        >>> from rlcore import Config, TrainBatch
        >>> class Centered:
        ...     def __init__(self, config: Config) -> None: ...
        ...     def estimate(self, batch: TrainBatch) -> torch.Tensor:
        ...         reward_B = batch.per_sample["reward"]
        ...         return (reward_B - reward_B.mean())[batch.segments]
    """

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        """Advantages, float32 [R], on the CPU; as `AdvantageOutput` where a value model learns.

        Called once a step, before any update. It may read `batch.per_sample["reward"]` float32 [B],
        `["group"]` and `["rollout"]` int64 [B], `batch.per_token["rewards"]` and `["loss_mask"]` float32 [R],
        and the columns (`rlcore.Input`) that its config `needs`. With `--kl-place reward`, the KL is already
        taken off the rewards.

        What it says of masked tokens does not count. Another shape or dtype, or a value that is not finite on
        a live token, ends the run with a `RunError` that names the estimator.
        """


@dataclass(frozen=True, kw_only=True)
class CorrectionInputs:
    """What a correction sees of a micro-batch: whole samples, response tokens only, and no gradient.

    Tensors are float32 on the trainer's device, unless they say otherwise. Log-probs are in nats, of the
    policy at the sampling temperature. Log-probs and advantages are 0 on masked tokens.
    """

    log_probs: Tensor
    """[R]: the trainer's now."""
    old_log_probs: Tensor
    """[R]: the trainer's before the update; with `--old-log-probs rollout`, the engine's."""
    rollout_log_probs: Tensor
    """[R]: the engine's, when it sampled."""
    advantages: Tensor
    """[R]."""
    mask: Tensor
    """[R]: 1 for a live token, else 0."""
    segments: Tensor
    """int64 [R]: the sample of each token, from 0 to B - 1."""
    samples: int
    """B, of this micro-batch."""
    batch: TrainBatch
    """The same samples, with every further column."""


@dataclass(frozen=True, kw_only=True)
class LossInputs(CorrectionInputs):
    """What a loss sees of a micro-batch: the same columns, and more. Here `log_probs` [R] carries the
    gradient.

    For responses that the data give, old and rollout log-probs are `log_probs` without gradient, and the
    advantages are 0. For pairs, `batch.per_sample["chosen"]` int64 [B] is 1 for the chosen response of a
    `group` and 0 for the rejected one.
    """

    entropy: Tensor | None
    """[R], in nats: of the policy's distribution before each token, if the run asks for it. It carries a
    gradient only with an `--entropy-coef`.
    """
    top_log_probs: Tensor | None = None
    """[R, K], with gradient: if the loss's config has `top_tokens`."""


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """The losses of a micro-batch. Another shape, or the name of a metric in use, is a `RunError`."""

    per_token: Tensor
    """[R]: the loss of each token. core applies mask and denominator, and sums."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Named values [R], which may be of bool. Logged as `train/<name>`, averaged over live tokens."""
    weighted: Mapping[str, Tensor] = field(default_factory=dict)
    """Likewise, but averaged with the weights that the loss has for its tokens."""


class Loss(Protocol):
    """Kind `loss`: a pure function from inputs to per-token losses, to be minimized.

    `factory(config)` builds it in each train worker. A loss never divides by a number of tokens or samples:
    core does, so that the split into micro-batches and ranks changes nothing.

    It is called for each micro-batch, where the logits are. With several mini-batches, `old_log_probs` stay
    those before the first. In the first one the ratio is 1 (unless the old ones are the engine's), but it has
    a gradient. A live token's loss that is not finite ends the run (`NotFiniteError`), and changes no weight.

        >>> from rlcore import Config, LossInputs, LossOutput, importance_ratio
        >>> class Plain:
        ...     def __init__(self, config: Config) -> None: ...
        ...     def __call__(self, inputs: LossInputs) -> LossOutput:
        ...         ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        ...         loss_R = -ratio_R * inputs.advantages
        ...         return LossOutput(per_token=loss_R, metrics={"ratio_mean": ratio_R.detach()})
    """

    def __call__(self, inputs: LossInputs) -> LossOutput: ...


@dataclass(frozen=True, kw_only=True)
class ValueInputs:
    """One micro-batch of whole samples, response tokens only.

    `values` [R] carries the gradient: the model's value of the state before each token. `old_values` [R]:
    the same before the update. `returns` [R]: what the values should be. `mask` [R]: 0 or 1. `batch`: every
    further column.
    """

    values: Tensor
    old_values: Tensor
    returns: Tensor
    mask: Tensor
    batch: TrainBatch


class ValueLoss(Protocol):
    """Kind `value_loss`: the value model's loss of each token, which core averages over live tokens.

    Metrics are logged under the model's role.
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
