"""The value loss `my_plugin`. Shape: `_R` response tokens of all samples."""

from rlcore import LossOutput, ValueInputs

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """Huber's loss of each token, e = V - R: e² where |e| ≤ delta, else delta · (2|e| - delta)."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._delta = config.delta

    def __call__(self, inputs: ValueInputs) -> LossOutput:
        """The metric is the share of tokens on the line, logged as `critic/far`."""
        error_R = (inputs.values - inputs.returns).abs()
        near_R = error_R.clamp(max=self._delta)
        loss_R = near_R * (2 * error_R - near_R)
        return LossOutput(per_token=loss_R, metrics={"far": error_R > self._delta})
