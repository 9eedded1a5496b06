"""The loss `my_plugin`. Shape: `_R` response tokens of all samples."""

from rlcore import LossInputs, LossOutput, importance_ratio

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """-A · min(ratio, ceiling) for each token. rlcore owns the mask, the denominator and the sum."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._ceiling = config.ceiling

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The metric is the share of tokens at the ceiling, logged as `train/at_ceiling`."""
        ratio_R = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
        at_ceiling_R = (ratio_R >= self._ceiling).to(ratio_R.dtype)
        loss_R = -inputs.advantages * ratio_R.clamp(max=self._ceiling)
        return LossOutput(per_token=loss_R, metrics={"at_ceiling": at_ceiling_R})
