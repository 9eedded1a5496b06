"""A reference without a model of its own: its weights wait in host memory, and borrow the policy's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rlcore import RoleSpec, SleepLevel, TrainBatch
from rlcore_fsdp.checkpoint import StagedModel
from rlcore_fsdp.config import FsdpConfig
from rlcore_fsdp.roles import LanguageModel
from rlcore_fsdp.shards import local
from rlcore_toolkit import HostWeights


def load_host_weights(spec: RoleSpec, config: FsdpConfig) -> HostWeights:
    """The weights of a model, which is built for it and given up again. Collective."""
    return HostWeights(_tensors(LanguageModel(spec, config, None)))


class SwappedModel:
    """A frozen copy of the policy's architecture, which takes the policy's place for each forward pass."""

    def __init__(self, policy: LanguageModel, weights: HostWeights, writers: dist.ProcessGroup) -> None:
        self._policy, self._weights, self._writers = policy, weights, writers

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Columns as `LanguageModel.forward` gives them."""
        with self._weights.in_place_of(_tensors(self._policy)):
            return self._policy.forward(batch, **options)

    def copy_weights(self, policy: LanguageModel) -> None:
        """Take over the weights of `policy`. No collective."""
        self._weights.take(_tensors(policy))

    def stage(self) -> StagedModel:
        """Stages what a resident reference does."""
        with self._weights.in_place_of(_tensors(self._policy)):
            return StagedModel(self._policy.state, {}, self._policy.steps, self._writers)

    def load(self, folder: Path) -> None:
        """Reads what a resident reference does. CheckpointError."""
        with self._weights.in_place_of(_tensors(self._policy)):
            self._policy.load_weights(folder)
            self._weights.take(_tensors(self._policy))

    def sleep(self, what: SleepLevel) -> int:
        """Nothing of it is on the device."""
        return 0

    def wake(self) -> None:
        """It never sleeps."""


def _tensors(model: LanguageModel) -> list[Tensor]:
    return [local(tensor) for tensor in model.state.values()]
