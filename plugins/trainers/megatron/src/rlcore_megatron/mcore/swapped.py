"""A frozen role without a model of its own: its weights wait in the host's memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore import ModelSpec, SleepLevel, TrainBatch
from rlcore_megatron.mcore.mtp import policy_tensors
from rlcore_megatron.mcore.role import Role
from rlcore_megatron.mcore.saving import StagedRole
from rlcore_toolkit import host_copy


def host_weights(role: Role) -> list[Tensor]:
    """A copy of the parameters and buffers of `role`, in host memory (pinned where there is a GPU)."""
    return [host_copy(tensor) for tensor in _tensors(role)]


def load_host_weights(spec: ModelSpec) -> list[Tensor]:
    """Those of the model that `spec` describes, which is built for it and given up again. Collective."""
    return host_weights(Role(spec, None))


class SwappedRole:
    """A frozen copy of a policy's model, which borrows that model for each of its forwards.

    Costs no device memory, host memory for the weights twice, and three copies of them over the host's link a
    forward (the model's out, these in, the model's back). The same numbers as a resident role: the same model
    computes them. Collective, as `Role` is.
    """

    def __init__(self, policy: Role, weights: list[Tensor]) -> None:
        """`weights`: of a model with the architecture of `policy`, in the order of `host_weights`."""
        self._view = copy.copy(policy)
        self._view.optimizer, self._view.settings, self._view.steps = None, None, 0
        self._view.replay_routing = False  # the choice was the policy's
        self._weights = weights
        self._kept: list[Tensor] | None = None

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """As `Role.forward`."""
        with self._in_place():
            return self._view.forward(batch, **options)

    def copy_weights(self, other: Role) -> None:
        """Take over the weights of `other`. No collective."""
        self._weights = host_weights(other)

    def save(self, folder: Path) -> None:
        """As `Role.save` of a frozen role."""
        self.stage().write(folder)

    def stage(self) -> StagedRole:
        """As `Role.stage` of a frozen role."""
        with self._in_place():
            return self._view.stage()

    def load(self, folder: Path) -> None:
        """As `Role.load` of a frozen role."""
        with self._in_place():
            self._view.load(folder)
            self._weights = host_weights(self._view)

    def sleep(self, what: SleepLevel) -> int:
        """Nothing of it is on the device."""
        return 0

    def wake(self) -> None:
        """It never sleeps."""

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Within, the model has these weights; afterwards its own again, bit by bit."""
        if self._kept is None:  # pinned memory is slow to get, so it is kept
            self._kept = host_weights(self._view)
        else:
            for host, tensor in zip(self._kept, _tensors(self._view), strict=True):
                host.copy_(tensor.detach())
        _fill(self._view, self._weights)
        try:
            yield
        finally:
            _fill(self._view, self._kept)


def _tensors(role: Role) -> Iterator[Tensor]:
    for chunk in role.built.chunks:
        yield from policy_tensors(chunk)


def _fill(role: Role, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(_tensors(role), weights, strict=True):
            tensor.copy_(value)
