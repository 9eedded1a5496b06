"""The corrections. Each is a pure function of the samples of a micro-batch, one sample at a time."""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rlcore import CorrectionInputs, TokenWeights, kl, segment_sum, where_live
from rlcore_corrections.config import (
    DecoupledConfig,
    DivergenceConfig,
    IcePopConfig,
    MisConfig,
    OpsmConfig,
    TisConfig,
)
from rlcore_toolkit import band_weights, segment_mean, truncated_weights

Level = Literal["token", "sequence", "geometric"]


def engine_log_ratio(inputs: CorrectionInputs, level: Level) -> Tensor:
    """log(π_old / π_engine), [R]: of the token, or the sum or the mean over the live tokens of its sample."""
    mask_R = inputs.mask
    token_R = where_live(inputs.old_log_probs, mask_R) - where_live(inputs.rollout_log_probs, mask_R)
    return level_log_ratio(token_R, mask_R, inputs.segments, inputs.samples, level)


def level_log_ratio(
    token_R: Tensor, mask_R: Tensor, segments_R: Tensor, samples: int, level: Level
) -> Tensor:
    """Log-ratios of tokens, 0 where not live, or their sum or mean over the live tokens of each sample."""
    if level == "token":
        return token_R
    if level == "sequence":
        return segment_sum(token_R, segments_R, samples)[segments_R]
    return segment_mean(token_R, mask_R, segments_R, samples)[segments_R]


class Tis:
    """Truncated importance sampling: clamp(π_old / π_engine, low, high) of each token.

    https://fengyao.notion.site/off-policy-rl
    """

    def __init__(self, config: TisConfig) -> None:
        self._config = config

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _weighed("tis", inputs, truncated_weights, self._config.low, self._config.high)


class Mis:
    """Importance sampling at the level of the token, of the sequence or of its geometric mean.

    The ratio is truncated (at most `high`), clipped (within the bounds), masked (0 outside of them) or only
    rejected by (0 outside, 1 inside). A veto leaves out every token of a sample one of whose tokens has a
    ratio below it, whatever the level and the mode.
    https://yingru.notion.site/When-Speed-Kills-Stability-271211a558b7808d8b12d403fd15edda
    """

    def __init__(self, config: MisConfig) -> None:
        self._config = config

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        config, low = self._config, self._config.lowest
        log_ratio_R = engine_log_ratio(inputs, config.level)
        if config.mode in ("truncate", "clip"):
            weights_R = truncated_weights(log_ratio_R, low, config.high)
        else:
            weights_R = band_weights(log_ratio_R, low, config.high)
        if config.mode == "reject":
            weights_R = torch.where(weights_R > 0, torch.ones_like(weights_R), weights_R)
        metrics = _metrics("mis", log_ratio_R, weights_R, low, config.high)
        if config.veto is not None:
            vetoed_R = self._vetoed(inputs, config.veto)
            weights_R = weights_R.masked_fill(vetoed_R, 0.0)
            metrics |= {"mis_weight": weights_R, "mis_vetoed": vetoed_R}
        return TokenWeights(weights=weights_R, metrics=metrics)

    def _vetoed(self, inputs: CorrectionInputs, veto: float) -> Tensor:
        """Whether the token's sample has a live token whose ratio is below `veto`, bool [R]."""
        beyond_R = (engine_log_ratio(inputs, "token") < math.log(veto)).to(inputs.old_log_probs.dtype)
        beyond_B = segment_sum(beyond_R, inputs.segments, inputs.samples)
        return (beyond_B > 0)[inputs.segments]


class IcePop:
    """The ratio π_old / π_engine of a token where it is in [low, high], else 0.

    https://arxiv.org/abs/2510.18855
    """

    def __init__(self, config: IcePopConfig) -> None:
        self._config = config

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _weighed("icepop", inputs, band_weights, self._config.low, self._config.high)


class Divergence:
    """0 where an estimate of KL(π_engine || π_old) exceeds `high`, else 1.

    With d = log(π_old / π_engine) of a token: k2 = d² / 2, k3 = e^d - 1 - d (http://joschu.net/blog/kl-approx.html).
    Of each token, or the mean or the largest over the live tokens of its sample. Neither is negative, so that
    deviations to both sides add up, where they cancel in the geometric mean of ratios.
    """

    def __init__(self, config: DivergenceConfig) -> None:
        self._config = config

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        mask_R, segments_R, samples = inputs.mask, inputs.segments, inputs.samples
        far_R = kl(inputs.rollout_log_probs, inputs.old_log_probs, mask_R, self._config.estimator)
        if self._config.level == "mean":
            far_R = segment_mean(far_R, mask_R, segments_R, samples)[segments_R]
        elif self._config.level == "max":
            far_B = far_R.new_zeros(samples).scatter_reduce(0, segments_R, far_R, "amax")
            far_R = far_B[segments_R]
        selection_R = torch.where(far_R > self._config.high, torch.zeros_like(far_R), torch.ones_like(far_R))
        weights_R = torch.where(far_R.isnan(), far_R, selection_R)
        return TokenWeights(
            weights=weights_R,
            metrics={"divergence_kl": far_R, "divergence_dropped": far_R > self._config.high},
        )


class Opsm:
    """Off-policy sequence masking: 0 where A < 0 and mean(log π_old - log π_new) of the sample > delta.

    https://arxiv.org/abs/2512.02556; the mean is over the live tokens.
    """

    def __init__(self, config: OpsmConfig) -> None:
        self._config = config

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        mask_R, segments_R = inputs.mask, inputs.segments
        moved_R = where_live(inputs.old_log_probs, mask_R) - where_live(inputs.log_probs, mask_R)
        moved_B = segment_mean(moved_R, mask_R, segments_R, inputs.samples)
        dropped_R = (inputs.advantages < 0) & (moved_B > self._config.delta)[segments_R]
        weights_R = torch.ones_like(moved_R).masked_fill(dropped_R, 0.0)
        return TokenWeights(weights=weights_R, metrics={"opsm_dropped": dropped_R})


class Decoupled:
    """Decoupled PPO: the old policy is the proximal one, and the engine's the behavior policy.

    The weight of a token is π_old / π_engine (https://arxiv.org/abs/2110.00641), or 0 where it is
    larger than `cap` (https://arxiv.org/abs/2505.24298).
    """

    def __init__(self, config: DecoupledConfig) -> None:
        self._high = math.inf if config.cap is None else config.cap

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return _weighed("decoupled", inputs, band_weights, 0.0, self._high)


def _weighed(
    name: str,
    inputs: CorrectionInputs,
    bounded: Callable[[Tensor, float, float], Tensor],
    low: float,
    high: float,
) -> TokenWeights:
    """The ratio π_old / π_engine of each token within its bounds."""
    log_ratio_R = engine_log_ratio(inputs, "token")
    weights_R = bounded(log_ratio_R, low, high)
    return TokenWeights(weights=weights_R, metrics=_metrics(name, log_ratio_R, weights_R, low, high))


def _metrics(name: str, log_ratio_R: Tensor, weights_R: Tensor, low: float, high: float) -> dict[str, Tensor]:
    """The ratio before its bounds, the weight, and whether the ratio was below or above the bounds."""
    ratio_R = truncated_weights(log_ratio_R, 0.0, math.inf)
    return {
        f"{name}_ratio": ratio_R,
        f"{name}_weight": weights_R,
        f"{name}_below": ratio_R < low,
        f"{name}_above": ratio_R > high,
    }
