"""The advantage of a recipe that does not train on rewards."""

import torch
from torch import Tensor

from rlcore import Config, TrainBatch


class Zero:
    """0 for every token: the reward is measured, and trained on nowhere."""

    def __init__(self, config: Config) -> None:
        del config

    def estimate(self, batch: TrainBatch) -> Tensor:
        """Zeros, float32 [R]."""
        return torch.zeros_like(batch.per_token["rewards"])
