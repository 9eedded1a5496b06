"""The policy gradient with clipped importance weights."""

from rlcore import LossInputs, LossOutput, importance_ratio, policy_gradient
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
        return LossOutput(
            per_token=policy_gradient(inputs.log_probs, weight_R * inputs.advantages, inputs.mask),
            metrics={"clip_fraction": weight_R != ratio_R, "ratio_mean": ratio_R},
        )
