"""The mathematics that algorithms share: weights of tokens, advantages of groups, credit over time.

Pure functions of tensors. Shape suffixes and masks are those of `rlcore.learning.maths`.
"""

import torch
from torch import Tensor

from rlcore import MAX_LOG_RATIO, indices_of, masked_mean, segment_sum, where_live

# --- tokens --------------------------------------------------------------------------------------------


def advantage_covariance(log_probs_R: Tensor, advantages_R: Tensor, mask_R: Tensor) -> Tensor:
    """(log p - mean) · (A - mean) of each token, float64 [R], means over live tokens; 0 where not live.

    Where it is large, a step makes the policy more certain (https://arxiv.org/abs/2505.22617, equation 10).
    """
    log_probs_R, advantages_R = where_live(log_probs_R, mask_R).double(), advantages_R.double()
    covariance_R = (log_probs_R - masked_mean(log_probs_R, mask_R)) * (
        advantages_R - masked_mean(advantages_R, mask_R)
    )
    return where_live(covariance_R, mask_R)


def segment_mean(x_R: Tensor, mask_R: Tensor, segments_R: Tensor, samples: int) -> Tensor:
    """Mean over the live tokens of each sample, [B]; 0 for a sample that has none."""
    count_B = segment_sum(mask_R.to(x_R.dtype), segments_R, samples)
    return segment_sum(where_live(x_R, mask_R), segments_R, samples) / count_B.clamp(min=1)


def policy_gradient(new_R: Tensor, weight_R: Tensor, mask_R: Tensor) -> Tensor:
    """-w · log π_new of the sampled tokens, 0 where not live: its gradient is -w, `weight_R` is a constant.

    A token without a weight has no part in it, even where its log-prob is infinite.
    """
    new_R = where_live(new_R, mask_R)
    # 0 times infinity would be NaN; a NaN of its own stays
    return -weight_R * new_R.masked_fill((weight_R == 0) & new_R.isinf(), 0.0)


def truncated_weights(log_ratio_R: Tensor, low: float, high: float) -> Tensor:
    """Truncated importance weights clamp(ratio, low, high), detached
    (https://fengyao.notion.site/off-policy-rl).

    Takes log-ratios of tokens, or of sequences: the mean (geometric) or the sum (product) of the tokens'.
    """
    return log_ratio_R.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(low, high)


def band_weights(log_ratio_R: Tensor, low: float, high: float) -> Tensor:
    """The ratio inside [low, high], 0 outside, detached; NaN stays: IcePop
    (https://arxiv.org/abs/2510.18855).
    """
    ratio_R = log_ratio_R.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return torch.where((ratio_R < low) | (ratio_R > high), torch.zeros_like(ratio_R), ratio_R)


# --- groups --------------------------------------------------------------------------------------------


def group_mean(x_B: Tensor, group_B: Tensor) -> Tensor:
    """The mean of its group, for each sample, [B]."""
    index_B, count_G = indices_of(group_B)
    sum_G = x_B.new_zeros(len(count_G)).index_add(0, index_B, x_B)
    return (sum_G / count_G)[index_B]


def group_std(x_B: Tensor, group_B: Tensor) -> Tensor:
    """The standard deviation (Bessel) of its group, for each sample, [B]; 0 in a group of one."""
    index_B, count_G = indices_of(group_B)
    square_B = (x_B - group_mean(x_B, group_B)).square()
    sum_G = x_B.new_zeros(len(count_G)).index_add(0, index_B, square_B)
    return (sum_G / (count_G - 1).clamp(min=1)).sqrt()[index_B]


def rollout_rewards(reward_B: Tensor, rollout_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rollout of each sample, from 0, int64 [B]; of each rollout its reward and its group, [N].

    Samples that were split from one rollout count once, with their mean reward.
    """
    index_B, count_N = indices_of(rollout_B)
    reward_N = reward_B.new_zeros(len(count_N))
    reward_N[index_B] = group_mean(reward_B, rollout_B)
    group_N = group_B.new_zeros(len(count_N))
    group_N[index_B] = group_B
    return index_B, reward_N, group_N


def group_advantages(reward_B: Tensor, group_B: Tensor, *, std: bool, eps: float = 1e-6) -> Tensor:
    """Reward minus group mean, over (group std + eps) where `std`, [B] (https://arxiv.org/abs/2402.03300).

    Each group by itself, whatever its size. Exactly 0 in a group of one and in a group of equal rewards,
    whose mean need not be representable. Without `std`: Dr. GRPO (https://arxiv.org/abs/2503.20783).
    """
    index_B, count_G = indices_of(group_B)
    start_G = reward_B.new_zeros(len(count_G))
    high_G = start_G.scatter_reduce(0, index_B, reward_B, "amax", include_self=False)
    low_G = start_G.scatter_reduce(0, index_B, reward_B, "amin", include_self=False)
    centered_B = reward_B - group_mean(reward_B, group_B)
    scale_B = group_std(reward_B, group_B) + eps if std else torch.ones_like(reward_B)
    return torch.where((high_G == low_G)[index_B], torch.zeros_like(reward_B), centered_B / scale_B)


def leave_one_out_baseline(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """The mean reward of the *other* samples of the group, [B]; its own reward in a group of one.

    RLOO (https://arxiv.org/abs/2402.14740): advantage = reward - baseline.
    """
    index_B, count_G = indices_of(group_B)
    count_B = count_G[index_B]
    others_B = (group_mean(reward_B, group_B) * count_B - reward_B) / (count_B - 1).clamp(min=1)
    return torch.where(count_B > 1, others_B, reward_B)


# --- credit over time ----------------------------------------------------------------------------------


def _live_places(mask_R: Tensor, segments_R: Tensor, samples: int) -> Tensor:
    """The places that the live tokens of each sample take if they move together to its left, bool [B, T].

    `segments_R` ascends.
    """
    count_B = segment_sum((mask_R > 0).long(), segments_R, samples)
    width = int(count_B.max()) if samples else 0
    return torch.arange(width, device=mask_R.device) < count_B[:, None]


def _rows(x_R: Tensor, mask_R: Tensor, places_BT: Tensor) -> Tensor:
    """The live tokens of each sample side by side, 0 behind them, [B, T]."""
    return x_R.new_zeros(places_BT.shape).masked_scatter(places_BT, x_R[mask_R > 0])


def _flat(x_BT: Tensor, mask_R: Tensor, places_BT: Tensor) -> Tensor:
    """The inverse of `_rows`, 0 where not live, [R]."""
    return x_BT.new_zeros(len(mask_R)).masked_scatter(mask_R > 0, x_BT[places_BT])


def _discount(x_BT: Tensor, factor: float) -> Tensor:
    """y_t = x_t + factor · y_{t+1}, row by row."""
    y_BT, carry_B = torch.zeros_like(x_BT), x_BT.new_zeros(len(x_BT))
    for t in range(x_BT.shape[1] - 1, -1, -1):
        carry_B = x_BT[:, t] + factor * carry_B
        y_BT[:, t] = carry_B
    return y_BT


def discounted_sums(
    reward_R: Tensor, mask_R: Tensor, segments_R: Tensor, samples: int, gamma: float
) -> Tensor:
    """Σ_{s≥t} gamma^(s-t) r_s over the live tokens of each sample, [R]; 0 where not live.

    A token that is not live (a tool wrote it) takes no time step: credit flows across the gap undiscounted.
    """
    places_BT = _live_places(mask_R, segments_R, samples)
    rows_BT = _rows(reward_R, mask_R, places_BT)
    return _flat(_discount(rows_BT, gamma), mask_R, places_BT)


def gae(
    reward_R: Tensor,
    value_R: Tensor,
    mask_R: Tensor,
    segments_R: Tensor,
    samples: int,
    *,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (advantage + value), [R] each; 0 where not live.

    Generalized advantage estimation (https://arxiv.org/abs/1506.02438) on the live tokens of each sample, as
    if the others were cut out; the value after the last one is 0.
    """
    places_BT = _live_places(mask_R, segments_R, samples)
    r_BT = _rows(reward_R, mask_R, places_BT)
    v_BT = _rows(value_R, mask_R, places_BT)
    # The value of the next token; without any live token there is no column to add a 0 behind.
    next_BT = torch.cat([v_BT[:, 1:], v_BT.new_zeros(samples, min(1, v_BT.shape[1]))], 1)
    advantage_R = _flat(_discount(r_BT + gamma * next_BT - v_BT, gamma * lam), mask_R, places_BT)
    return advantage_R, where_live(advantage_R + value_R, mask_R)
