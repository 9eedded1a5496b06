"""Advantages relative to the group."""

import torch
from torch import Tensor

from rlcore import TrainBatch, indices_of
from rlcore_grpo.config import GroupAdvantageConfig
from rlcore_toolkit import group_advantages, rollout_rewards


class GroupAdvantage:
    """GRPO's advantage (https://arxiv.org/abs/2402.03300, section 4.1.2); without `std`, Dr. GRPO's.

    Every response token has the advantage of its rollout. Each group is normalized by itself, over its
    rollouts: samples that were split from one rollout count once, with their mean reward.
    """

    def __init__(self, config: GroupAdvantageConfig) -> None:
        self._config = config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        # in float64, so that the order of the sums does not show in the float32 result
        index_B, reward_N, group_N = rollout_rewards(
            batch.per_sample["reward"].double(), batch.per_sample["rollout"], batch.per_sample["group"]
        )
        advantage_N = group_advantages(reward_N, group_N, std=self._config.std, eps=self._config.eps)
        if self._config.single == "reward":
            of_group_N, size_G = indices_of(group_N)
            advantage_N = torch.where(size_G[of_group_N] == 1, reward_N, advantage_N)
        return advantage_N[index_B][batch.segments].float()
