"""The clipped value loss."""

import torch

from rlcore import LossOutput, ValueInputs
from rlcore_ppo.config import ClippedConfig


class Clipped:
    """max((clip(V, V_old ± c) - R)², (V - R)²) for each token; without `clip` (V - R)².

    The value's counterpart of PPO's clipped policy loss (https://arxiv.org/abs/2005.12729, section 3).
    """

    def __init__(self, config: ClippedConfig) -> None:
        self._clip = config.clip

    def __call__(self, inputs: ValueInputs) -> LossOutput:
        error_R = (inputs.values - inputs.returns).square()
        if self._clip is None:
            return LossOutput(per_token=error_R)
        low_R, high_R = inputs.old_values - self._clip, inputs.old_values + self._clip
        clipped_R = (inputs.values.clamp(low_R, high_R) - inputs.returns).square()
        return LossOutput(
            per_token=torch.maximum(error_R, clipped_R), metrics={"clip_fraction": clipped_R > error_R}
        )
