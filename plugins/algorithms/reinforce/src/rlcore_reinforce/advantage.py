"""Advantages without a critic.

Everything is computed in float64, so that the order of the sums does not show in the float32 results.
"""

import torch
from torch import Tensor

from rlcore import Config, Input, TrainBatch, segment_sum, token_weights, where_live, whiten
from rlcore_reinforce.config import ReinforceConfig, ReinforcePlusPlusConfig, ReMaxConfig
from rlcore_toolkit import (
    discounted_sums,
    group_advantages,
    group_mean,
    leave_one_out_baseline,
    rollout_rewards,
)


def returns(batch: TrainBatch, gamma: float) -> Tensor:
    """What each token still earns, float64 [R], 0 where not live; only live tokens take a time step."""
    reward_R, mask_R = batch.per_token["rewards"].double(), batch.per_token["loss_mask"]
    return discounted_sums(reward_R, mask_R, batch.segments, len(batch), gamma)


def rollouts(batch: TrainBatch) -> tuple[Tensor, Tensor, Tensor]:
    """`rlcore_toolkit.rollout_rewards` of the batch, in float64."""
    columns = batch.per_sample
    return rollout_rewards(columns["reward"].double(), columns["rollout"], columns["group"])


class ReinforceAdvantage:
    """REINFORCE's return-to-go (https://doi.org/10.1007/BF00992696), less a baseline.

    The baseline is the mean over rollouts of the mean return of a rollout's live tokens: the mean reward,
    where there is no discount and each sample is rewarded once.
    """

    def __init__(self, config: ReinforceConfig) -> None:
        self._config = config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        return_R, mask_R = returns(batch, self._config.gamma), batch.per_token["loss_mask"]
        if not self._config.baseline:
            return return_R.float()
        weight_R = token_weights(
            mask_R, batch.segments, batch.per_sample["rollout"], normalizer="per_rollout", constant=1
        )
        return where_live(return_R - (weight_R * return_R).sum(), mask_R).float()


class LeaveOneOut:
    """RLOO: reward minus the mean reward of the group's other rollouts (https://arxiv.org/abs/2402.14740).

    Every response token has the advantage of its rollout. A group of one has 0. Samples that were split from
    one rollout count once, with their mean reward.
    """

    def __init__(self, config: Config) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        index_B, reward_N, group_N = rollouts(batch)
        advantage_N = reward_N - leave_one_out_baseline(reward_N, group_N)
        return advantage_N[index_B][batch.segments].float()


class OptimalBaseline:
    """OPO: reward minus the mean reward of the group, weighted by length (https://arxiv.org/abs/2505.23585).

    That baseline has the least variance where the squared gradient of a response grows as its length, here
    its live tokens. Every response token has the advantage of its rollout; a group of one, or of equal
    rewards, has exactly 0. Samples that were split from one rollout count once: their mean reward, all their
    tokens.
    """

    def __init__(self, config: Config) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        index_B, reward_N, group_N = rollouts(batch)
        live_R = (batch.per_token["loss_mask"] > 0).double()
        live_N = segment_sum(live_R, index_B[batch.segments], len(reward_N))
        # of the centered rewards, so that equal ones give exactly 0
        centered_N = group_advantages(reward_N, group_N, std=False)
        length_N = group_mean(live_N, group_N)
        baseline_N = group_mean(live_N * centered_N, group_N) / torch.where(length_N > 0, length_N, 1.0)
        return (centered_N - baseline_N)[index_B][batch.segments].float()


class GroupPolicyGradient:
    """GPG: reward minus group mean, scaled up for groups without a signal (https://arxiv.org/abs/2504.02546).

    The scale is B / (B - M), for the batch's B rollouts and the M of them whose group has equal rewards: the
    gradient is that of the groups that have one. Every response token has the advantage of its rollout.
    Samples that were split from one rollout count once, with their mean reward.
    """

    def __init__(self, config: Config) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        index_B, reward_N, group_N = rollouts(batch)
        centered_N = group_advantages(reward_N, group_N, std=False)
        telling = (group_mean(centered_N.abs(), group_N) > 0).sum().clamp(min=1)
        return (centered_N * len(reward_N) / telling)[index_B][batch.segments].float()


class ReMax:
    """ReMax: return-to-go, less the reward of the prompt's greedy response (https://arxiv.org/abs/2310.10505).

    The baseline does not depend on what was sampled, so it changes no expected gradient. Without a discount
    and with one reward a sample: the reward minus the greedy reward, on every token.
    """

    def __init__(self, config: ReMaxConfig) -> None:
        self._gamma = config.gamma

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        return_R = returns(batch, self._gamma)
        baseline_R = batch.per_sample[Input.GREEDY_REWARD].double()[batch.segments]
        return where_live(return_R - baseline_R, batch.per_token["loss_mask"]).float()


class ReinforcePlusPlus:
    """REINFORCE++: return-to-go, normalized over all live tokens of the batch.

    https://arxiv.org/abs/2501.03262, without the KL penalty, which needs a reference model. Where the batch
    has fewer than two live tokens, they keep their returns.
    """

    def __init__(self, config: ReinforcePlusPlusConfig) -> None:
        self._config = config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        return whiten(returns(batch, self._config.gamma), batch.per_token["loss_mask"]).float()


class ReinforcePlusPlusBaseline:
    """REINFORCE++ with baseline: reward minus group mean, normalized over all live tokens of the batch.

    https://arxiv.org/abs/2501.03262. The group has no part in the scale. A group of one is at 0 before the
    normalization. Samples that were split from one rollout count once in the mean, with their mean reward.
    """

    def __init__(self, config: Config) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]."""
        index_B, reward_N, group_N = rollouts(batch)
        centered_N = group_advantages(reward_N, group_N, std=False)
        return whiten(centered_N[index_B][batch.segments], batch.per_token["loss_mask"]).float()
