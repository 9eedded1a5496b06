"""How a train worker reaches a critic on workers of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore.api.errors import RlcoreError

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.api.batch import TrainBatch
    from rlcore.api.trainer import StepResult, ValueFunction

CALL_SECONDS = 3600.0
"""Time for a peer to answer."""


class RemoteCritic:
    """The `ValueModel` of a train worker whose critic is a rank of another group: each call is a call there.

    The ranks of both groups have the same layout, so the peer's data-parallel rank is this one's.
    """

    def __init__(self, peer: Any) -> None:
        """`peer`: the handle of the `CriticWorker` of the same rank."""
        self._peer = peer

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        """As `ValueModel.values`."""
        values: Tensor = _answer(self._peer.values.remote(batch, tokens_per_rank))
        return values

    def fit(self, batch: TrainBatch, loss: ValueFunction, *, tokens_per_rank: int) -> StepResult:
        """As `ValueModel.fit`; the loss travels with the call."""
        result: StepResult = _answer(self._peer.fit.remote(batch, loss, tokens_per_rank))
        return result


def _answer(reference: Any) -> Any:
    """The result of a call to a peer; its own error where that is rlcore's."""
    import ray
    import ray.exceptions

    try:
        return ray.get(reference, timeout=CALL_SECONDS)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RlcoreError):
            raise error.cause from None
        raise
