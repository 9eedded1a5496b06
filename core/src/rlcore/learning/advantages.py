"""Advantages, with the KL terms in them, and token weights.

They are computed on the whole batch before it is split over ranks or micro-batches.
So the result of a plugin cannot depend on the split. Shape suffixes as in `rlcore.learning.maths`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.errors import NotFiniteError, faults_of
from rlcore.api.part import part_name
from rlcore.api.run_config import KlOptions
from rlcore.api.training import AdvantageEstimator, AdvantageOutput, BatchColumns
from rlcore.learning.maths import Normalizer, kl, masked_mean, segment_sum, token_weights, where_live, whiten
from rlcore.learning.minibatch import assign_minibatches
from rlcore.learning.outputs import checked_columns, checked_estimate


def prepare(
    batch: TrainBatch,
    estimator: AdvantageEstimator | None,
    *,
    normalizer: Normalizer,
    constant: int,
    minibatches: int,
    whiten_advantages: bool = False,
) -> TrainBatch:
    """The whole batch with the columns that training reads.

    For each token, float32 [R], 0 where not live: `weights`, those of `rlcore.token_weights` within the
    token's mini-batch; `advantages`, if there is an estimator; `returns`, if the estimator gives them. For
    each sample: `minibatch` int64 [B], if the batch has none yet.

    `whiten_advantages`: over all live tokens of the batch (`rlcore.whiten`). `constant`: for the normalizer
    `constant`. Raises `RunError` where the estimator's output has a wrong shape or dtype, or is not finite on
    a live token; `NotFiniteError` where a log-prob of the engine is not finite.
    """
    mask_R, segments_R = batch.per_token["loss_mask"], batch.segments
    rollout_R = batch.per_token.get("rollout_log_probs")
    if rollout_R is not None and not bool(torch.isfinite(where_live(rollout_R, mask_R)).all()):
        raise NotFiniteError("The engine returned log-probs that are not finite for tokens to train on.")
    estimated = {} if estimator is None else _estimated(batch, estimator)
    if whiten_advantages and estimated:
        # in float64, so that the order of the sums does not show in the float32 result
        white_R = whiten(estimated["advantages"].double(), mask_R * _scored(batch)[segments_R])
        estimated["advantages"] = white_R.float()
    minibatch_B = batch.per_sample.get("minibatch")
    if minibatch_B is None:
        minibatch_B = assign_minibatches(batch.per_sample["rollout"], minibatches)
    shares_B = batch.per_sample["group" if normalizer == "per_prompt" else "rollout"]
    weights_R = torch.zeros(len(mask_R))
    for number in range(minibatches):
        of_sample_B = minibatch_B == number
        of_token_R = of_sample_B[segments_R]
        # The samples of this mini-batch, numbered from 0.
        segment_B = torch.cumsum(of_sample_B, 0) - 1
        weights_R[of_token_R] = token_weights(
            mask_R[of_token_R],
            segment_B[segments_R[of_token_R]],
            shares_B[of_sample_B],
            normalizer=normalizer,
            constant=constant,
        ).float()
    return batch.with_columns(
        per_token={**estimated, "weights": weights_R}, per_sample={"minibatch": minibatch_B}
    )


def with_batch_columns(batch: TrainBatch, parts: Iterable[object]) -> TrainBatch:
    """The prepared `batch` with the columns of those of `parts` that make some (`BatchColumns`).

    Raises `RunError` for a wrong shape, a value that is not finite on a live token, or a name in use.
    """
    for part in parts:
        if isinstance(part, BatchColumns):
            with faults_of(f"The part {part_name(part)}"):
                columns = part.batch_columns(batch)
            batch = batch.with_columns(per_token=checked_columns(batch, part, columns))
    return batch


def _estimated(batch: TrainBatch, estimator: AdvantageEstimator) -> dict[str, Tensor]:
    """The columns `advantages` and, where there are any, `returns`, checked.

    Samples without a score take no part: they have the advantage 0, and a critic's values as returns.
    """
    scored_B = _scored(batch).bool()
    if not scored_B.all():
        columns = _estimated(batch.select(scored_B.nonzero().flatten().tolist()), estimator)
        mask_R, zeros_R = scored_B[batch.segments], torch.zeros(len(batch.segments))
        rest = {"advantages": zeros_R, "returns": batch.per_token.get(Input.VALUES, zeros_R)}
        return {name: rest[name].masked_scatter(mask_R, column_R) for name, column_R in columns.items()}
    with faults_of(f"The advantage estimator {part_name(estimator)}"):
        output = estimator.estimate(batch)
    if not isinstance(output, AdvantageOutput):
        return {"advantages": checked_estimate(batch, estimator, output)}
    return {
        "advantages": checked_estimate(batch, estimator, output.advantages),
        "returns": checked_estimate(batch, estimator, output.returns),
    }


def _scored(batch: TrainBatch) -> Tensor:
    """1 for each sample that has a score, else 0, float32 [B]."""
    return batch.per_sample.get("scored", torch.ones(len(batch))).float()


def in_rewards(batch: TrainBatch, settings: KlOptions) -> TrainBatch:
    """`batch` with coef · KL_t subtracted from each live token's reward, and the sum from the sample's
    reward.

    The KL is between the old policy and the reference, without gradient (https://arxiv.org/abs/1909.08593,
    equation 2).
    """
    columns = batch.per_token
    mask_R = columns["loss_mask"]
    # in float64, so that a sample's reward does not depend on the order of the sum
    kl_R = kl(
        columns[Input.OLD_LOG_PROBS].double(),
        columns[Input.REFERENCE_LOG_PROBS].double(),
        mask_R,
        settings.kl_estimator,
    )
    penalty_R = settings.kl_coef * kl_R
    reward_B = batch.per_sample["reward"] - segment_sum(penalty_R, batch.segments, len(batch))
    rewards_R = columns["rewards"] - penalty_R
    return batch.with_columns({"rewards": rewards_R.float()}, {"reward": reward_B.float()})


class WithTeacher:
    """An estimator's advantages minus coef · (log π - log π_teacher) of each sampled token.

    The expectation of that difference is the reverse KL of on-policy distillation
    (https://thinkingmachines.ai/blog/on-policy-distillation). It has no gradient, and a critic's returns do
    not contain it.
    """

    def __init__(self, estimator: AdvantageEstimator, coef: float) -> None:
        self._estimator = estimator
        self._coef = coef

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        """The other estimator's output, less the term; reads `OLD_LOG_PROBS` and `TEACHER_LOG_PROBS` too."""
        estimated, columns = _estimated(batch, self._estimator), batch.per_token
        penalty_R = self._coef * (columns[Input.OLD_LOG_PROBS] - columns[Input.TEACHER_LOG_PROBS])
        advantages_R = estimated["advantages"] - penalty_R
        if "returns" in estimated:
            return AdvantageOutput(advantages=advantages_R, returns=estimated["returns"])
        return advantages_R


def advantage_metrics(batch: TrainBatch) -> dict[str, float]:
    """`advantage_mean`, `advantage_std` (population) over the live tokens of a prepared batch."""
    advantages_R, mask_R = batch.per_token["advantages"], batch.per_token["loss_mask"]
    mean = masked_mean(advantages_R, mask_R)
    variance = masked_mean((advantages_R - mean).square(), mask_R)
    return {"advantage_mean": float(mean), "advantage_std": float(variance.sqrt())}
