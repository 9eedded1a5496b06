"""A rank of a role that has workers of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import StepResult, ValueFunction
from rlcore.workers.train_worker import RankWorker, WorkerSetup
from rlcore_machine import settle_heap


@dataclass
class _Round:
    """One round: shares and results by data-parallel rank of the policy, and how many have their result."""

    offered: dict[int, TrainBatch] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    answered: int = 0

    def batch(self) -> TrainBatch:
        """The shares as one, in the order of their sources."""
        from rlcore.learning.gather import joined

        return joined([self.offered[source] for source in sorted(self.offered)])

    def divided(self, columns: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        """For each source, its rows of columns of the response tokens of `batch`."""
        sources = sorted(self.offered)
        counts = [int(self.offered[source].response_lengths.sum()) for source in sources]
        parts = {name: column.split(counts) for name, column in columns.items()}
        # Copies: a part of a tensor travels with the memory of the whole.
        return {
            source: {name: pieces[place].clone() for name, pieces in parts.items()}
            for place, source in enumerate(sources)
        }


class RoleWorker(RankWorker):
    """One rank of a role that has workers of its own; train workers call it, as `RemoteRole` says."""

    def start(self, role: str, setup: WorkerSetup, host: str, port: int) -> int:
        """Join the process group of the role and build its model; returns the data-parallel rank."""
        trainer = self._join(setup, role, host, port)
        self._models = trainer.build({role: setup.roles[role]})
        self._model = self._models[role]
        self._rounds: dict[int, _Round] = {}
        settle_heap()
        return trainer.data.number

    def expect(self, askers: int) -> None:
        """Say how many train workers ask for each round."""
        self._askers = askers

    def offer(self, number: int, source: int, batch: TrainBatch) -> None:
        """The share of the policy's data-parallel rank `source`, for round `number`."""
        self._rounds.setdefault(number, _Round()).offered[source] = batch

    def answer(self, number: int, source: int, method: str, options: Mapping[str, Any]) -> Any:
        """The result of round `number` for `source`. The first call of a round makes this rank work."""
        this = self._rounds[number]  # complete: a train worker asks only after all have offered
        if not this.answered:
            # One of the three methods below, by the name that `RemoteRole` has for it.
            this.answers = getattr(self, f"_{method}")(this, **options)
        this.answered += 1
        if this.answered == self._askers:  # others may be a round ahead
            del self._rounds[number]
        return this.answers[source]

    def _forward(self, this: _Round, **options: Any) -> dict[int, dict[str, Tensor]]:
        """`Scorer.forward` for each share."""
        return this.divided(self._model.forward(this.batch(), **options))

    def _values(self, this: _Round, **options: Any) -> dict[int, dict[str, Tensor]]:
        """`ValueModel.values` for each share, as the column `values`."""
        return this.divided({"values": self._model.values(this.batch(), **options)})

    def _fit(self, this: _Round, loss: ValueFunction, **options: Any) -> dict[int, StepResult]:
        """`ValueModel.fit` on all shares together."""
        return dict.fromkeys(this.offered, self._model.fit(this.batch(), loss, **options))
