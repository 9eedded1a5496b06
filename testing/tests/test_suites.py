"""The conformance suites find what they are for: each property fails for a part that lacks it."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import pytest
import torch
from broken_parts import all_fails, lacks
from torch import Tensor

from rlcore import AdvantageEstimator, Loss, LossInputs, LossOutput, TrainBatch
from rlcore.learning.maths import importance_ratio, whiten
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.losses import LossConformance
from rlcore_toolkit import group_advantages

# --- losses --------------------------------------------------------------------------------------------


PerToken = Callable[[Tensor, LossInputs], Tensor]


class Suite(LossConformance):
    """Of a loss given as a function of (ratio, inputs)."""

    per_token: ClassVar[Any]

    def loss(self) -> Loss:
        def loss(inputs: LossInputs) -> LossOutput:
            ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
            return LossOutput(per_token=self.per_token(ratio, inputs))

        return loss


CALLS = iter(range(10**6))


def changes_its_input(ratio: Tensor, inputs: LossInputs) -> Tensor:
    inputs.old_log_probs.mul_(1.5)
    return -ratio * inputs.advantages


@pytest.mark.parametrize(
    ("loss", "missing"),
    [
        (lambda ratio, i: -ratio * i.advantages, ""),
        (
            lambda ratio, i: -ratio * whiten(i.advantages, i.mask),
            "the split into micro batches does not matter",
        ),
        (
            lambda ratio, i: -ratio * i.advantages * (torch.arange(len(ratio)) < 8),
            "the order of the samples does not matter",
        ),
        (lambda ratio, i: -ratio * i.advantages * len(ratio), "masked tokens are as if cut out"),
        (
            lambda ratio, i: -ratio * i.advantages + 0 * ratio[i.mask > 0].max(),  # there may be none
            "a batch without live tokens gives nothing",
        ),
        (
            lambda ratio, i: -ratio * i.batch.per_token.get("given", ratio).sum(),
            "nan in masked tokens changes nothing",
        ),
        (lambda ratio, i: -ratio.detach() * ratio * i.advantages, "the gradient is right"),
        (lambda ratio, i: -2 * ratio * i.advantages, "on policy it is the policy gradient"),
        (lambda ratio, i: -i.log_probs * i.advantages, "extreme log ratios are finite"),
        (
            lambda ratio, i: -ratio.nan_to_num(1.0) * i.advantages,
            "nan of a live token is not hidden",
        ),
        (
            lambda ratio, i: -(ratio + 1e-3 * next(CALLS)) * i.advantages,
            "it is a pure function",
        ),
        (changes_its_input, "it is a pure function"),
    ],
)
def test_a_loss_that_lacks_a_property(loss: PerToken, missing: str) -> None:
    lacks(Suite.with_values(per_token=staticmethod(loss)), missing)


def test_the_given_gradient_is_compared() -> None:
    class Detached(Suite):
        def gradient(self, inputs: LossInputs) -> Tensor:
            return -inputs.advantages

    def plain(ratio: Tensor, inputs: LossInputs) -> Tensor:
        return -ratio * inputs.advantages

    def straight(ratio: Tensor, inputs: LossInputs) -> Tensor:
        return -(ratio / ratio.detach()) * inputs.advantages

    assert "the gradient is right" in all_fails(Detached.with_values(per_token=staticmethod(plain)))
    assert "the gradient is right" not in all_fails(Detached.with_values(per_token=staticmethod(straight)))


# --- estimators ----------------------------------------------------------------------------------------


class Estimators(EstimatorConformance):
    scope: ClassVar[Literal["sample", "group", "batch"]] = "group"
    shift_invariant: ClassVar[bool] = True

    per_sample: ClassVar[Any]

    def estimator(self) -> AdvantageEstimator:
        return Made(self.per_sample)


class Made:
    def __init__(self, per_sample: Callable[[TrainBatch], Tensor]) -> None:
        self._per_sample = per_sample

    def estimate(self, batch: TrainBatch) -> Tensor:
        return self._per_sample(batch)[batch.segments].float()


def group_relative(batch: TrainBatch) -> Tensor:
    return group_advantages(batch.per_sample["reward"].double(), batch.per_sample["group"], std=True)


def own_reward(batch: TrainBatch) -> Tensor:
    return batch.per_sample["reward"]


def divided_by_its_spread(batch: TrainBatch) -> Tensor:
    """0 / 0 in a group of one."""
    reward, group = batch.per_sample["reward"], batch.per_sample["group"]
    spread = torch.stack([reward[group == g].std(correction=0) for g in group])
    return group_advantages(reward, group, std=False) / spread


@pytest.mark.parametrize(
    ("per_sample", "missing"),
    [
        (group_relative, ""),
        (lambda batch: own_reward(batch) * 0, "it gives a finite number for each live token"),
        (divided_by_its_spread, "a group of one gets finite numbers"),
        (
            lambda batch: own_reward(batch) + batch.per_token["rewards"].nan_to_num(1.0).sum(),
            "what is masked does not matter",
        ),
        (
            lambda batch: group_relative(batch) / batch.response_lengths.clamp(min=1),
            "masked tokens are as if cut out",
        ),
        (
            lambda batch: group_relative(batch) * torch.arange(len(batch)),
            "the order of the samples does not matter",
        ),
        (
            lambda batch: group_relative(batch) * batch.per_sample["group"],
            "other ids of groups change nothing",
        ),
        (
            lambda batch: own_reward(batch) - own_reward(batch).mean(),
            "samples outside its scope change nothing",
        ),
        (own_reward, "a shift of all rewards does not matter"),
    ],
)
def test_an_estimator_that_lacks_a_property(per_sample: Callable[[TrainBatch], Tensor], missing: str) -> None:
    lacks(Estimators.with_values(per_sample=staticmethod(per_sample)), missing)
