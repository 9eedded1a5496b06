"""A rank of a critic that has workers of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlcore.runtime.worker import CRITIC, RankWorker, WorkerSetup, critic_optimizer

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.api.batch import TrainBatch
    from rlcore.api.trainer import StepResult, ValueFunction


@dataclass
class _Round:
    """One round: shares and results by data-parallel rank of the policy, and how many have their result."""

    offered: dict[int, TrainBatch] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    answered: int = 0

    def batch(self) -> TrainBatch:
        """The shares as one, in the order of their sources."""
        from rlcore.api.batch import joined

        return joined([self.offered[source] for source in sorted(self.offered)])


class RoleWorker(RankWorker):
    """One rank of a critic that has workers of its own; train workers call it, as `RemoteRole` says."""

    def start(self, setup: WorkerSetup, host: str, port: int) -> int:
        """Join the critics' process group and build the model; returns the data-parallel rank."""
        assert setup.critic is not None, "a critic's worker has a critic"
        trainer = self._join(setup, host, port)
        from rlcore.api.trainer import Roles

        wanted = Roles(critic=setup.critic, critic_optimizer=critic_optimizer(setup.run))
        critic = trainer.build(wanted).critic
        assert critic is not None, "it was asked for"
        self._critic = critic
        self._roles[CRITIC] = critic
        self._rounds: dict[int, _Round] = {}
        return trainer.data.number

    def expect(self, askers: int) -> None:
        """Say how many train workers ask for each round."""
        self._askers = askers

    def offer(self, number: int, source: int, batch: TrainBatch) -> None:
        """The share of the policy's data-parallel rank `source`, for round `number`."""
        self._rounds.setdefault(number, _Round()).offered[source] = batch

    def answer(self, number: int, source: int, method: str, *arguments: Any) -> Any:
        """The result of round `number` for `source`. The first call of a round makes this rank work."""
        this = self._rounds[number]  # complete: a train worker asks only after all have offered
        if not this.answered:
            this.answers = getattr(self, f"_{method}")(this, *arguments)
        this.answered += 1
        if this.answered == self._askers:  # others may be a round ahead
            del self._rounds[number]
        return this.answers[source]

    def _values(self, this: _Round, tokens_per_rank: int) -> dict[int, Tensor]:
        """`ValueModel.values` for each share."""
        values = self._critic.values(this.batch(), tokens_per_rank=tokens_per_rank)
        counts = [int(this.offered[source].response_lengths.sum()) for source in sorted(this.offered)]
        return dict(zip(sorted(this.offered), values.split(counts), strict=True))

    def _fit(self, this: _Round, loss: ValueFunction, tokens_per_rank: int) -> dict[int, StepResult]:
        """`ValueModel.fit` on all shares together."""
        result = self._critic.fit(this.batch(), loss, tokens_per_rank=tokens_per_rank)
        return dict.fromkeys(this.offered, result)
