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


def segment_sum(x_R: Tensor, segments_R: Tensor, samples: int) -> Tensor:
    """Sum over the tokens of each sample, [B]."""
    return x_R.new_zeros(samples).index_add(0, segments_R, x_R)


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


def kl(new_R: Tensor, ref_R: Tensor, mask_R: Tensor, kind: KlKind) -> Tensor:
    """Per-token estimate of KL(π_new || π_ref) on tokens sampled from π_new; 0 where not live.

    With d = new - ref: k1 = d, k2 = d²/2, k3 = e^-d - 1 + d (http://joschu.net/blog/kl-approx.html), of d
    from -`MAX_LOG_RATIO` up: below, value and slope stay finite and never point away from the other policy;
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
