"""The KL to the reference as part of the reward."""

from __future__ import annotations

from rlcore.api.batch import TrainBatch
from rlcore.api.inputs import Input
from rlcore.api.maths import kl, segment_sum
from rlcore.api.run_config import KlOptions


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
