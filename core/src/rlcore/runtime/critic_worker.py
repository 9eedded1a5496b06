"""A rank of a critic that has workers of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore.runtime.worker import CRITIC, RankWorker, WorkerSetup

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.api.batch import TrainBatch
    from rlcore.api.trainer import StepResult, ValueFunction


class CriticWorker(RankWorker):
    """One rank of a critic that has workers of its own; the train worker of the same rank calls it."""

    def start(self, setup: WorkerSetup, host: str, port: int) -> None:
        """Join the critics' process group and build the model."""
        assert setup.critic is not None, "a critic's worker has a critic"
        trainer = self._join(setup, host, port)
        from rlcore.api.trainer import Roles

        wanted = Roles(critic=setup.critic.model, critic_optimizer=setup.critic.optimizer)
        critic = trainer.build(wanted).critic
        assert critic is not None, "it was asked for"
        self._critic = critic
        self._roles[CRITIC] = critic

    def values(self, batch: TrainBatch, tokens_per_rank: int) -> Tensor:
        """As `ValueModel.values`."""
        return self._critic.values(batch, tokens_per_rank=tokens_per_rank)

    def fit(self, batch: TrainBatch, loss: ValueFunction, tokens_per_rank: int) -> StepResult:
        """As `ValueModel.fit`."""
        return self._critic.fit(batch, loss, tokens_per_rank=tokens_per_rank)
