"""The mathematics of policy optimization: pure functions of tensors.

Shape suffixes: `_R` response tokens of all samples, `_B` samples, `_BT` samples by live tokens, padded.
`mask_R` is 0 or 1; a token whose mask is 1 is *live*. What another token holds never matters, be it NaN: it
is replaced before the arithmetic, so that neither a value nor a gradient can carry it on.
"""

from typing import Literal

import torch
from torch import Tensor

Normalizer = Literal["per_rollout", "per_prompt", "per_token", "constant"]
KlKind = Literal["k1", "k2", "k3", "low_var_kl"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before `exp`: e^20 is finite in every dtype that a loss is computed in."""


# --- masks and segments --------------------------------------------------------------------------------


def where_live(x_R: Tensor, mask_R: Tensor) -> Tensor:
    """`x_R` with 0 for each token that is not live; no gradient reaches those tokens."""
    return torch.where(mask_R > 0, x_R, torch.zeros_like(x_R))


def masked_mean(x_R: Tensor, mask_R: Tensor) -> Tensor:
    """Mean over live tokens, scalar; 0 where there are none."""
    return where_live(x_R, mask_R).sum() / mask_R.sum().clamp(min=1)


def advantage_covariance(log_probs_R: Tensor, advantages_R: Tensor, mask_R: Tensor) -> Tensor:
    """(log p - mean) · (A - mean) of each token, float64 [R], means over live tokens; 0 where not live.

    Where it is large, a step makes the policy more certain (https://arxiv.org/abs/2505.22617, equation 10).
    """
    log_probs_R, advantages_R = where_live(log_probs_R, mask_R).double(), advantages_R.double()
    covariance_R = (log_probs_R - masked_mean(log_probs_R, mask_R)) * (
        advantages_R - masked_mean(advantages_R, mask_R)
    )
    return where_live(covariance_R, mask_R)


def segment_sum(x_R: Tensor, segments_R: Tensor, samples: int) -> Tensor:
    """Sum over the tokens of each sample, [B]."""
    return x_R.new_zeros(samples).index_add(0, segments_R, x_R)


def segment_mean(x_R: Tensor, mask_R: Tensor, segments_R: Tensor, samples: int) -> Tensor:
    """Mean over the live tokens of each sample, [B]; 0 for a sample that has none."""
    count_B = segment_sum(mask_R.to(x_R.dtype), segments_R, samples)
    return segment_sum(where_live(x_R, mask_R), segments_R, samples) / count_B.clamp(min=1)


def whiten(x_R: Tensor, mask_R: Tensor, eps: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 (Bessel) over live tokens; 0 elsewhere. Fewer than 2 live tokens: unchanged."""
    x_R, count = where_live(x_R, mask_R), mask_R.sum()
    if count < 2:
        return x_R
    centered_R = where_live(x_R - x_R.sum() / count, mask_R)
    return centered_R * torch.rsqrt(centered_R.square().sum() / (count - 1) + eps)


# --- ratios --------------------------------------------------------------------------------------------


def log_ratio(new_R: Tensor, old_R: Tensor, mask_R: Tensor) -> Tensor:
    """log(π_new / π_old) of the sampled tokens, clamped to ±`MAX_LOG_RATIO`; 0 where not live.

    ±inf becomes the bound, so that it is harmless where the advantage is 0; a NaN on a live token stays.
    No gradient flows where the clamp acts.
    """
    return (where_live(new_R, mask_R) - where_live(old_R, mask_R)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance_ratio(new_R: Tensor, old_R: Tensor, mask_R: Tensor) -> Tensor:
    """π_new / π_old of the sampled tokens, finite and positive; 1 where not live."""
    return log_ratio(new_R, old_R, mask_R).exp()


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


def kl(new_R: Tensor, ref_R: Tensor, mask_R: Tensor, kind: KlKind) -> Tensor:
    """Per-token estimate of KL(π_new || π_ref) on tokens sampled from π_new; 0 where not live.

    With d = new - ref: k1 = d, k2 = d²/2, k3 = e^-d - 1 + d (http://joschu.net/blog/kl-approx.html), of d
    from -`MAX_LOG_RATIO` up: below, value and slope stay finite and never point away from the reference;
    `low_var_kl` is k3 clamped to ±10.
    """
    d_R = where_live(new_R, mask_R) - where_live(ref_R, mask_R)
    if kind == "k1":
        return d_R
    if kind == "k2":
        return d_R.square() / 2
    d_R = d_R.clamp(min=-MAX_LOG_RATIO)
    k3_R = torch.exp(-d_R) - 1 + d_R
    return k3_R if kind == "k3" else k3_R.clamp(-10, 10)


# --- groups --------------------------------------------------------------------------------------------


def indices_of(ids_B: Tensor) -> tuple[Tensor, Tensor]:
    """Ids numbered from 0 in ascending order, int64 [B], and how often each of them occurs, int64 [G]."""
    index_B: Tensor
    count_G: Tensor
    _, index_B, count_G = torch.unique(ids_B, return_inverse=True, return_counts=True)
    return index_B, count_G


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


# --- the reduction -------------------------------------------------------------------------------------


def token_weights(
    mask_R: Tensor, segments_R: Tensor, rollout_B: Tensor, *, normalizer: Normalizer, constant: int
) -> Tensor:
    """The weight of each token in a minibatch's loss Σ w·loss, float64 [R]; 0 where not live.

    `per_rollout`: 1 / (rollouts with live tokens) / (live tokens of that rollout), the mean of rollout means;
    samples of one rollout share its denominator. `per_prompt`: the same of groups, whose ids `rollout_B` then
    holds: the mean of the prompts' token means. `per_token`: 1 / (live tokens).
    `constant`: 1 / (`constant` * rollouts) (https://arxiv.org/abs/2503.20783).
    """
    live_R = (mask_R > 0).double()
    index_B, samples_N = indices_of(rollout_B)
    if normalizer == "constant":
        return live_R / (constant * max(1, len(samples_N)))
    if normalizer == "per_token":
        return live_R / live_R.sum().clamp(min=1)
    # Samples that were split from one rollout have one denominator together.
    rollout_R = index_B[segments_R]
    live_N = segment_sum(live_R, rollout_R, len(samples_N))
    return live_R / live_N.clamp(min=1)[rollout_R] / (live_N > 0).sum().clamp(min=1)
