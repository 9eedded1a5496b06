"""`CriticLearner`: the critic's side of a training step."""

from __future__ import annotations

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import StepResult, ValueModel
from rlcore.api.training import ValueLoss
from rlcore.learning.metrics import summed_metrics, trainer_metrics
from rlcore.learning.value_objective import ValueObjective, explained_variance


class CriticLearner:
    """A critic and its loss, on one rank."""

    def __init__(self, critic: ValueModel, loss: ValueLoss, tokens_per_rank: int) -> None:
        self._critic = critic
        self._objective = ValueObjective(loss)
        self._tokens_per_rank = tokens_per_rank
        self._results: list[StepResult] = []

    def train(self, part: TrainBatch) -> StepResult:
        """One optimizer step on this rank's share of a mini-batch."""
        result = self._critic.fit(part, self._objective, tokens_per_rank=self._tokens_per_rank)
        self._results.append(result)
        return result

    def take_metrics(self, whole: TrainBatch) -> dict[str, float]:
        """`critic/…` of the steps since the last call. `whole`: the prepared batch that they trained on."""
        results, self._results = self._results, []
        sums = summed_metrics(results)
        tokens = sums.pop("tokens")
        metrics = {
            **trainer_metrics("critic", results),
            **{f"critic/{name}": value / tokens for name, value in sums.items()},
        }
        explained = explained_variance(whole)
        return metrics if explained is None else {**metrics, "critic/explained_variance": explained}
