"""A rank of a critic that has workers of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore.runtime.worker import CRITIC, RankWorker, WorkerSetup

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.data.batch import TrainBatch
    from rlcore.interfaces.trainer import StepResult
    from rlcore_megatron.mcore.critic import ValueFunction


class CriticWorker(RankWorker):
    """One rank of a critic that has workers of its own; the train worker of the same rank calls it."""

    def start(self, setup: WorkerSetup, host: str, port: int) -> None:
        """Join the critics' process group and build the model."""
        assert setup.critic is not None, "a critic's worker has a critic"
        self._join(setup, host, port)
        from rlcore_megatron.mcore.critic import Critic

        self._critic = Critic(setup.critic.model, setup.critic.optimizer)
        self._roles[CRITIC] = self._critic

    def values(self, batch: TrainBatch, tokens_per_rank: int) -> Tensor:
        """As `Critic.values`."""
        return self._critic.values(batch, tokens_per_rank=tokens_per_rank)

    def fit(self, batch: TrainBatch, loss: ValueFunction, tokens_per_rank: int) -> StepResult:
        """As `Critic.fit`."""
        return self._critic.fit(batch, loss, tokens_per_rank=tokens_per_rank)
