"""How a train worker reaches a critic on workers of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.api.batch import TrainBatch
    from rlcore.api.trainer import StepResult, ValueFunction
    from rlcore.runtime.cluster import Actor


class RemoteCritic:
    """The `ValueModel` of a train worker whose critic is a rank of another group: each call is a call there.

    The ranks of both groups have the same layout, so the peer's data-parallel rank is this one's.
    """

    def __init__(self, peer: Actor, limit_s: float) -> None:
        """`peer`: the `CriticWorker` of the same rank. `limit_s`: for each call."""
        self._peer = peer
        self._limit_s = limit_s

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """As `ValueModel.values`."""
        values: Tensor = self._peer.ask("values", batch, tokens_per_rank, limit_s=self._limit_s)
        return values

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """As `ValueModel.fit`; the loss travels with the call."""
        result: StepResult = self._peer.ask("fit", batch, loss, tokens_per_rank, limit_s=self._limit_s)
        return result
