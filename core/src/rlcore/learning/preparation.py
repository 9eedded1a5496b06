"""Advantages and token weights, computed on the whole batch before it is split over ranks or micro-batches.

So the result of a plugin cannot depend on the split. Shape suffixes as in `rlcore.api.maths`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import NotFiniteError
from rlcore.api.maths import Normalizer, masked_mean, token_weights, where_live, whiten
from rlcore.api.training import AdvantageEstimator, AdvantageOutput, BatchColumns
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
        white_R = whiten(estimated["advantages"].double(), mask_R)
        estimated["advantages"] = white_R.float()
    minibatch_B = batch.per_sample.get("minibatch")
    if minibatch_B is None:
        minibatch_B = assign_minibatches(batch.per_sample["rollout"], minibatches)
    shares_B = batch.per_sample["group" if normalizer == "per_prompt" else "rollout"]
    weights_R = torch.zeros(len(mask_R))
    for number in range(minibatches):
        of_sample_B = minibatch_B == number
        of_token_R = of_sample_B[segments_R]
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
            batch = batch.with_columns(per_token=checked_columns(batch, part, part.batch_columns(batch)))
    return batch


def _estimated(batch: TrainBatch, estimator: AdvantageEstimator) -> dict[str, Tensor]:
    """The columns `advantages` and, where there are any, `returns`, checked."""
    output = estimator.estimate(batch)
    if not isinstance(output, AdvantageOutput):
        return {"advantages": checked_estimate(batch, estimator, output)}
    return {
        "advantages": checked_estimate(batch, estimator, output.advantages),
        "returns": checked_estimate(batch, estimator, output.returns),
    }


def advantage_metrics(batch: TrainBatch) -> dict[str, float]:
    """`advantage_mean`, `advantage_std` (population) over the live tokens of a prepared batch."""
    advantages_R, mask_R = batch.per_token["advantages"], batch.per_token["loss_mask"]
    mean = masked_mean(advantages_R, mask_R)
    variance = masked_mean((advantages_R - mean).square(), mask_R)
    return {"advantage_mean": float(mean), "advantage_std": float(variance.sqrt())}
