"""What the critic's side of a step reports: means over mini-batches and over tokens."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlcore import LossOutput, LossResult, StepResult, TrainBatch, ValueInputs
from rlcore.learning.critic import CriticLearner, with_value_weights
from rlcore.learning.minibatch import samples_of, select
from rlcore_ppo.config import ClippedConfig
from rlcore_ppo.value_loss import Clipped
from rlcore_testing.tiny import VOCAB_SIZE

BUDGET = 1000


class Table:
    """A value for each token, trained by plain gradient descent with a rate that halves at each step."""

    def __init__(self) -> None:
        self.values_V = torch.zeros(VOCAB_SIZE, requires_grad=True)
        self.lr = 1.0

    def values(self, batch: TrainBatch, *, tokens_per_rank: int) -> Tensor:
        assert tokens_per_rank == BUDGET
        return self._of(batch).detach()

    def fit(
        self, batch: TrainBatch, loss: Callable[[Tensor, TrainBatch], LossResult], *, tokens_per_rank: int
    ) -> StepResult:
        assert tokens_per_rank == BUDGET
        result = loss(self._of(batch), batch)
        (gradient,) = torch.autograd.grad(result.total, self.values_V)
        lr, self.lr = self.lr, self.lr / 2
        with torch.no_grad():
            self.values_V -= lr * gradient
        return StepResult(
            loss=float(result.total.detach()),
            metrics={name: float(value) for name, value in result.metrics.items()},
            grad_norm=float(gradient.norm()),
            lr=lr,
            finite=True,
        )

    def _of(self, batch: TrainBatch) -> Tensor:
        """Of responses alone: the prompts have no tokens."""
        return self.values_V[batch.tokens]


def _batch() -> TrainBatch:
    """Two mini-batches with 3 and 1 live tokens, each of one sample; values 0, a token each."""
    return with_value_weights(
        TrainBatch(
            tokens=torch.arange(6),
            prompt_lengths=torch.zeros(2, dtype=torch.int64),
            response_lengths=torch.tensor([4, 2]),
            per_token={
                "loss_mask": torch.tensor([1.0, 1, 0, 1, 0, 1]),
                "returns": torch.tensor([1.0, 2, 9, 3, 9, 4]),
                "values": torch.tensor([0.0, 0, 7, 0.5, 7, 3.5]),
            },
            per_sample={"position": torch.arange(2), "minibatch": torch.arange(2)},
        )
    )


def test_the_metrics_of_a_step() -> None:
    """By hand. Values of 0 where the old ones were 0, 0, 0.5 and 3.5, so the last two are clipped.

    The squared errors are 1, 4, 9 and 16; the clipped value is 0.3 and 3.3, which is nearer to the return, so
    the larger error stays and no token counts as clipped. The slopes are -2, -4, -6 over 3, and -8.
    """
    critic, whole = Table(), _batch()
    learner = CriticLearner(critic, Clipped(ClippedConfig(clip=0.2)), BUDGET)
    for number in range(2):
        learner.train(select(whole, samples_of(whole, number)))
    slopes = (56**0.5 / 3, 8.0)
    variance = sum((x - 2.5) ** 2 for x in (1, 2, 3, 4)) / 4
    rest = (1.0, 2.0, 2.5, 0.5)
    left = sum((x - 1.5) ** 2 for x in rest) / 4
    assert learner.take_metrics(whole) == pytest.approx(
        {
            "critic/loss": (14 / 3 + 16) / 2,
            "critic/grad_norm": sum(slopes) / 2,
            "critic/lr": 0.5,
            "critic/clip_fraction": 0.0,
            "critic/explained_variance": 1 - left / variance,
        }
    )


def test_metrics_are_of_the_steps_since_the_last_call() -> None:
    """After a step of the first mini-batch alone: 2/3, 4/3 and 2 are further than 0.2 from the old values.

    Where they have moved towards the return by more than that, the clipped error is the larger one: all 3.
    """
    critic, whole = Table(), _batch()
    learner = CriticLearner(critic, Clipped(ClippedConfig(clip=0.2)), BUDGET)
    first = select(whole, samples_of(whole, 0))
    learner.train(first)
    learner.take_metrics(whole)
    learner.train(first)
    found = learner.take_metrics(whole)
    assert found["critic/loss"] == pytest.approx((0.8**2 + 1.8**2 + 2.3**2) / 3)
    assert (found["critic/clip_fraction"], found["critic/lr"]) == (1.0, 0.5)


def test_metrics_with_the_tokens_weights_are_means_over_the_steps() -> None:
    critic, whole = Table(), _batch()

    def squared(inputs: ValueInputs) -> LossOutput:
        error = (inputs.returns - inputs.values).square()
        return LossOutput(per_token=error, weighted={"error": error.detach()})

    learner = CriticLearner(critic, squared, BUDGET)
    for number in range(2):
        learner.train(select(whole, samples_of(whole, number)))
    assert learner.take_metrics(whole)["critic/error"] == pytest.approx(((1 + 4 + 9) / 3 + 16) / 2)
