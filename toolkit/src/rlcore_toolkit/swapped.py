"""A frozen model without a place of its own on the device: its weights wait in the host's memory."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from rlcore import SleepLevel, TrainBatch
from rlcore_toolkit.offload import HostWeights


class SwappedModel:
    """A frozen copy of a policy's model, which borrows that model for each of its forwards.

    The same numbers as a resident copy: the same model computes them. Collective as the model's methods are.
    """

    def __init__(self, view: Any, weights: HostWeights, tensors: Callable[[Any], Sequence[Tensor]]) -> None:
        """`view`: the policy, as a frozen model of it would `forward`, `stage` and `load`. `tensors`: from a
        model of this architecture to its weights, in the order of `weights`.
        """
        self._view, self._weights, self._tensors = view, weights, tensors

    def forward(self, batch: TrainBatch, **options: Any) -> dict[str, Tensor]:
        """Columns as the policy's `forward` gives them."""
        with self._weights.in_place_of(self._tensors(self._view)):
            columns: dict[str, Tensor] = self._view.forward(batch, **options)
            return columns

    def copy_weights(self, other: Any) -> None:
        """Take over the weights of `other`. No collective."""
        self._weights.take(self._tensors(other))

    def save(self, folder: Path) -> None:
        """Writes what a resident copy does."""
        self.stage().write(folder)

    def stage(self) -> Any:
        """Stages what a resident copy does."""
        with self._weights.in_place_of(self._tensors(self._view)):
            return self._view.stage()

    def load(self, folder: Path) -> None:
        """Reads what a resident copy does. CheckpointError."""
        with self._weights.in_place_of(self._tensors(self._view)):
            self._view.load(folder)
            self._weights.take(self._tensors(self._view))

    def sleep(self, what: SleepLevel) -> int:
        """Nothing of it is on the device."""
        return 0

    def wake(self) -> None:
        """It never sleeps."""
