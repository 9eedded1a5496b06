"""A frozen role without a model of its own: its weights wait in the host's memory."""

import copy
from pathlib import Path
from typing import Any

from torch import Tensor

from rlcore import ModelSpec, SleepLevel, TrainBatch
from rlcore_megatron.mcore.bridges.mtp import policy_tensors
from rlcore_megatron.mcore.checkpoint.saving import StagedRole
from rlcore_megatron.mcore.role.role import Role
from rlcore_toolkit import HostWeights


def host_weights(role: Role) -> HostWeights:
    """A copy of the parameters and buffers of `role`."""
    return HostWeights(_tensors(role))


def load_host_weights(spec: ModelSpec) -> HostWeights:
    """Those of the model that `spec` describes, which is built for it and given up again. Collective."""
    return host_weights(Role(spec, None))


class SwappedRole:
    """A frozen copy of a policy's model, which borrows that model for each of its forwards.

    The same numbers as a resident role: the same model computes them. Collective, as `Role` is.
    """

    def __init__(self, policy: Role, weights: HostWeights) -> None:
        """`weights`: of a model with the architecture of `policy`."""
        self._view = copy.copy(policy)
        self._view.optimizer, self._view.settings, self._view.steps = None, None, 0
        self._view.replayed = frozenset()  # the choice was the policy's
        self._weights = weights

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Columns as `Role.forward` gives them."""
        with self._weights.in_place_of(_tensors(self._view)):
            return self._view.forward(batch, **options)

    def copy_weights(self, other: Role) -> None:
        """Take over the weights of `other`. No collective."""
        self._weights.take(_tensors(other))

    def save(self, folder: Path) -> None:
        """Writes what `Role.save` writes of a frozen role."""
        self.stage().write(folder)

    def stage(self) -> StagedRole:
        """Stages what `Role.stage` does of a frozen role."""
        with self._weights.in_place_of(_tensors(self._view)):
            return self._view.stage()

    def load(self, folder: Path) -> None:
        """Reads what `Role.load` reads of a frozen role."""
        with self._weights.in_place_of(_tensors(self._view)):
            self._view.load(folder)
            self._weights.take(_tensors(self._view))

    def sleep(self, what: SleepLevel) -> int:
        """Nothing of it is on the device."""
        return 0

    def wake(self) -> None:
        """It never sleeps."""


def _tensors(role: Role) -> list[Tensor]:
    return [tensor for chunk in role.built.chunks for tensor in policy_tensors(chunk)]
