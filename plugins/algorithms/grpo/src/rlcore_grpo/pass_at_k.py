"""Advantages of the best of k responses."""

from math import comb, fsum, sqrt

from torch import Tensor

from rlcore import TrainBatch
from rlcore_grpo.config import PassAtKConfig
from rlcore_toolkit import rollout_rewards


class PassAtKAdvantage:
    """The advantage of pass@k, in closed form (https://arxiv.org/abs/2508.10751, section 2.4).

    A set of k rollouts has the reward of its best one: with rewards of 0 and 1, whether it passes. A rollout
    has the mean, over all sets that hold it, of the set's reward less the mean over all sets, over their
    standard deviation (of the population). Where all sets are worth the same, all have 0. A group of fewer
    than k is one set. Every response token has the advantage of its rollout; samples that were split from one
    rollout count once, with their mean reward.
    """

    def __init__(self, config: PassAtKConfig) -> None:
        self._k = config.k

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        columns = batch.per_sample
        # in float64, so that the order of the sums does not show in the float32 result
        index_B, reward_N, group_N = rollout_rewards(
            columns["reward"].double(), columns["rollout"], columns["group"]
        )
        advantage_N = reward_N.new_zeros(len(reward_N))
        for group in group_N.unique():
            member_G = (group_N == group).nonzero().flatten()
            ascending_G = member_G[reward_N[member_G].argsort()]
            advantage_N[ascending_G] = reward_N.new_tensor(
                _advantages(reward_N[ascending_G].tolist(), self._k)
            )
        return advantage_N[index_B][batch.segments].float()


def _advantages(rewards: list[float], k: int) -> list[float]:
    """The advantages of ascending rewards. A rollout is the best of the sets whose others precede it."""
    size = len(rewards)
    k = min(k, size)
    if rewards[k - 1] == rewards[-1]:
        return [0.0] * size
    best = [comb(place, k - 1) / comb(size, k) for place in range(size)]
    mean = fsum(share * reward for share, reward in zip(best, rewards, strict=True))
    std = sqrt(fsum(share * (reward - mean) ** 2 for share, reward in zip(best, rewards, strict=True)))
    advantages = []
    for place, reward in enumerate(rewards):
        as_best = reward * comb(place, k - 1)
        better = [rewards[j] * comb(j - 1, k - 2) for j in range(place + 1, size)] if k > 1 else []
        advantages.append((fsum([as_best, *better]) / comb(size - 1, k - 1) - mean) / std)
    return advantages
