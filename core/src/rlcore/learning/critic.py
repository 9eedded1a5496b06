"""`CriticLearner`, the critic's side of a training step, and core's part of a critic's loss.

Core's part: the mask, the denominator and the sum. As for the policy (`rlcore.learning.advantages`), the
tokens' weights are computed on the whole batch, before it is split. Shape suffixes as in `maths`.
"""

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.errors import RunError
from rlcore.api.part import part_name
from rlcore.api.trainer import LossResult, StepResult, ValueModel
from rlcore.api.training import ValueInputs, ValueLoss
from rlcore.learning.maths import masked_mean, where_live
from rlcore.learning.metrics import summed_metrics, token_means, trainer_metrics
from rlcore.learning.outputs import output_of, total_of, weighted_sums


def with_value_weights(batch: TrainBatch) -> TrainBatch:
    """The whole batch with `value_weights` float32 [R]: 1 / (live tokens of its mini-batch), else 0.

    RunError where the advantage estimator gave no `returns` to learn.
    """
    if "returns" not in batch.per_token:
        raise RunError("There is a critic, but the advantage estimator gave no returns for it to learn.")
    live_R = (batch.per_token["loss_mask"] > 0).double()
    minibatch_R = batch.per_sample["minibatch"][batch.segments]
    count = max(1, int(batch.per_sample["minibatch"].max()) + 1)
    # Counts in float64: float32 counts no further than 2^24.
    live_M = torch.zeros(count, dtype=torch.float64).index_add(0, minibatch_R, live_R)
    return batch.with_columns({"value_weights": (live_R / live_M.clamp(min=1)[minibatch_R]).float()})


def explained_variance(batch: TrainBatch) -> float | None:
    """1 - Var(returns - values) / Var(returns) over the live tokens; None where all returns are equal."""
    mask_R = batch.per_token["loss_mask"]
    returns_R, values_R = batch.per_token["returns"].double(), batch.per_token[Input.VALUES].double()
    variance = _variance(returns_R, mask_R)
    return 1 - _variance(returns_R - values_R, mask_R) / variance if variance > 0 else None


def _variance(x_R: Tensor, mask_R: Tensor) -> float:
    return float(masked_mean((x_R - masked_mean(x_R, mask_R)).square(), mask_R))


class ValueObjective:
    """Σ_t w_t · loss_t over the live tokens of a micro-batch: the mean over the mini-batch's live tokens.

    `LossResult.metrics` are sums over live tokens of each metric, beside `tokens`, their number.
    """

    def __init__(self, loss: ValueLoss) -> None:
        self._loss = loss

    def __call__(self, values_R: Tensor, batch: TrainBatch) -> LossResult:
        """`batch` must hold `loss_mask`, `values`, `returns` and `value_weights`."""
        columns, mask_R = batch.per_token, batch.per_token["loss_mask"]
        inputs = ValueInputs(
            values=where_live(values_R, mask_R),
            old_values=where_live(columns[Input.VALUES], mask_R),
            returns=where_live(columns["returns"], mask_R),
            mask=mask_R,
            batch=batch,
        )
        whose = f"The value loss {part_name(self._loss)}"
        output = output_of(whose, self._loss, inputs, role="critic")
        weights_R = columns["value_weights"]
        total = total_of(whose, output.per_token, weights_R, mask_R, values_R)
        with torch.no_grad():
            sums = {k: where_live(v.to(values_R.dtype), mask_R).sum() for k, v in output.metrics.items()}
        sums |= weighted_sums(output, weights_R, mask_R)
        return LossResult(total=total, metrics={**sums, "tokens": mask_R.sum()})


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
        means = token_means("critic", summed_metrics(results), len(results))
        metrics = {**trainer_metrics("critic", results), **means}
        explained = explained_variance(whole)
        return metrics if explained is None else {**metrics, "critic/explained_variance": explained}
