"""The loss with a soft gate."""

import torch

from rlcore import LossInputs, LossOutput, importance_ratio
from rlcore_sapo.config import SapoConfig


class Sapo:
    """SAPO's loss (https://arxiv.org/abs/2511.20347).

    With r the ratio of new to old policy and p = sigmoid(τ (r - 1)): -(4 / τ) p A, where τ is `tau_pos` for
    A > 0 and `tau_neg` otherwise. The gradient is that of -r A times 4 p (1 - p), which is 1 on policy and
    fades to both sides.
    """

    def __init__(self, config: SapoConfig) -> None:
        self._config = config

    def __call__(self, inputs: LossInputs) -> LossOutput:
        advantages_R = inputs.advantages
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        positive_R = torch.full_like(ratio_R, self._config.tau_pos)
        tau_R = torch.where(advantages_R > 0, positive_R, self._config.tau_neg)
        open_R = torch.sigmoid(tau_R * (ratio_R - 1))
        return LossOutput(
            per_token=-4 / tau_R * open_R * advantages_R,
            metrics={"gate_mean": 4 * open_R * (1 - open_R), "ratio_mean": ratio_R},
        )
