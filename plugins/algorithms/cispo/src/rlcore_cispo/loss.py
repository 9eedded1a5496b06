"""The policy gradient with clipped importance weights."""

from rlcore.interfaces import LossInputs, LossOutput
from rlcore.maths import importance_ratio, where_live
from rlcore_cispo.config import CispoConfig


class Cispo:
    """CISPO's loss (https://arxiv.org/abs/2506.13585, equations 4 and 5).

    With r the ratio of new to old policy: -clip(r, 1 - low, 1 + high) A log π, the clipped ratio detached.
    Outside the bounds a token keeps the gradient of its log-prob, with the bound as its weight.
    """

    def __init__(self, config: CispoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio_R = importance_ratio(inputs.log_probs.detach(), inputs.old_log_probs, inputs.mask)
        weight_R = ratio_R.clamp(1 - self._config.clip_low, 1 + self._config.clip_high)
        log_probs_R = where_live(inputs.log_probs, inputs.mask)
        # a token without an advantage has no part in the loss, but 0 times infinity would be NaN
        log_probs_R = log_probs_R.masked_fill((inputs.advantages == 0) & log_probs_R.isinf(), 0.0)
        return LossOutput(
            per_token=-weight_R * inputs.advantages * log_probs_R,
            metrics={"clip_fraction": weight_R != ratio_R, "ratio_mean": ratio_R},
        )
