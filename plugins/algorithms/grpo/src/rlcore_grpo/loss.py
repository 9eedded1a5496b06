"""The clipped policy loss."""

import torch
from torch import Tensor

from rlcore import LossInputs, LossOutput, importance_ratio
from rlcore_grpo.config import PpoClipConfig


class PpoClip:
    """PPO's clipped loss (https://arxiv.org/abs/1707.06347, equation 7).

    With r the ratio of new to old policy: max(-r A, -clip(r, 1 - low, 1 + high) A), the bounds chosen one by
    one (https://arxiv.org/abs/2503.14476). With `dual_clip` c, where A < 0: at most -c A
    (https://arxiv.org/abs/1912.09729).
    """

    def __init__(self, config: PpoClipConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        config, advantages_R = self._config, inputs.advantages
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        plain_R = -ratio_R * advantages_R
        clipped_R = -ratio_R.clamp(1 - config.clip_low, 1 + config.highest) * advantages_R
        loss_R = torch.maximum(plain_R, clipped_R)
        metrics: dict[str, Tensor] = {"clip_fraction": clipped_R > plain_R, "ratio_mean": ratio_R}
        if config.dual_clip is not None:
            bound_R = -config.dual_clip * advantages_R
            metrics["dual_clip_fraction"] = (advantages_R < 0) & (loss_R > bound_R)
            loss_R = torch.where(advantages_R < 0, torch.minimum(loss_R, bound_R), loss_R)
        return LossOutput(per_token=loss_R, metrics=metrics)
