"""The correction `my_plugin`. Shape: `_R` response tokens of all samples."""

from rlcore import CorrectionInputs, TokenWeights, log_ratio

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """Weight 1 where trainer and engine agree, less the further they are apart."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._rate = config.rate

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        """The metric is the mean weight, logged as `train/trust`."""
        gap_R = log_ratio(inputs.old_log_probs, inputs.rollout_log_probs, inputs.mask).abs()
        weights_R = (-self._rate * gap_R).exp()
        return TokenWeights(weights=weights_R, metrics={"trust": weights_R})
