"""`CriticLearner`: the critic's side of a training step."""

from __future__ import annotations

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import StepResult, ValueModel
from rlcore.api.training import ValueLoss
from rlcore.learning.metrics import trainer_metrics
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
        sums: dict[str, float] = {}
        for result in results:
            for name, value in result.metrics.items():
                sums[name] = sums.get(name, 0.0) + value
        tokens = sums.pop("tokens")
        metrics = {
            "critic/loss": sum(result.loss for result in results) / len(results),
            "critic/grad_norm": sum(result.grad_norm for result in results) / len(results),
            "critic/lr": results[-1].lr,
            **trainer_metrics("critic", results),
            **{f"critic/{name}": value / tokens for name, value in sums.items()},
        }
        explained = explained_variance(whole)
        return metrics if explained is None else {**metrics, "critic/explained_variance": explained}
