"""Advantages relative to the mean reward of the group."""

import torch
from torch import Tensor

from rlcore import RunError, TrainBatch
from rlcore_grpo.config import MaxRlConfig
from rlcore_toolkit import group_advantages, group_mean, rollout_rewards


class MaxRlAdvantage:
    """MaxRL's advantage (https://arxiv.org/abs/2602.02710): (reward - mean) / mean of the group.

    Exactly 0 in a group of one, of equal rewards, or without any success. Every response token has the
    advantage of its rollout; samples that were split from one rollout count once, with their mean reward.
    """

    def __init__(self, config: MaxRlConfig) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]. Raises `RunError` for a reward below 0."""
        # in float64, so that the order of the sums does not show in the float32 result
        reward_B = batch.per_sample["reward"].double()
        if bool((reward_B < 0).any()):
            raise RunError(
                f"--advantage max_rl: found a reward of {float(reward_B.min()):g}, expected 0 or more, "
                "for it divides by the group's mean reward."
            )
        index_B, reward_N, group_N = rollout_rewards(
            reward_B, batch.per_sample["rollout"], batch.per_sample["group"]
        )
        mean_N = group_mean(reward_N, group_N)
        centered_N = group_advantages(reward_N, group_N, std=False)
        # without any reward the numerator is 0 as well
        advantage_N = centered_N / torch.where(mean_N > 0, mean_N, 1.0)
        return advantage_N[index_B][batch.segments].float()
