"""The advantage `my_plugin`. Shapes: `_B` samples, `_R` response tokens of all samples."""

import torch
from rlcore import TrainBatch
from torch import Tensor

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin:
    """The reward of a sample minus the median reward of its group, the same for each of its tokens."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._scale = config.scale

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Advantages, float32 [R]. What a masked token holds does not matter."""
        reward_B, group_B = batch.per_sample["reward"], batch.per_sample["group"]
        median_B = torch.zeros_like(reward_B)
        for group in group_B.unique():
            median_B[group_B == group] = reward_B[group_B == group].quantile(0.5)
        advantage_B = self._scale * (reward_B - median_B)
        return advantage_B[batch.segments].float()
