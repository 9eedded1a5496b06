"""The suites of corrections and of losses of a critic: each property fails for a part that lacks it."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from broken_parts import all_fails, lacks
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.part import Part
from rlcore.api.part_config import CorrectionConfig
from rlcore.api.training import Correction, CorrectionInputs, LossOutput, TokenWeights, ValueInputs, ValueLoss
from rlcore_testing.corrections import CorrectionConformance
from rlcore_testing.value_losses import ValueLossConformance
from rlcore_toolkit import truncated_weights

CALLS = iter(range(10**6))


# --- corrections ---------------------------------------------------------------------------------------


class WeighingConfig(CorrectionConfig):
    @property
    def weighs(self) -> bool:
        return True


Weigh = Callable[[CorrectionInputs], Tensor]


class Corrections(CorrectionConformance):
    part = Part(name="mine", factory="nowhere:Mine", config=WeighingConfig())
    weigh: ClassVar[Any]

    def correction(self) -> Correction:
        return Given(self.weigh)


class Given:
    def __init__(self, weigh: Weigh) -> None:
        self._weigh = weigh

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        return TokenWeights(weights=self._weigh(inputs))


def truncated(inputs: CorrectionInputs) -> Tensor:
    return truncated_weights(inputs.old_log_probs - inputs.rollout_log_probs, 0.0, 2.0)


def changes_its_input(inputs: CorrectionInputs) -> Tensor:
    weights = truncated(inputs)
    inputs.old_log_probs.add_(0.01)
    return weights


@pytest.mark.parametrize(
    ("weigh", "missing"),
    [
        (truncated, ""),
        (lambda i: (i.old_log_probs - i.rollout_log_probs).exp(), "weights are finite and not negative"),
        (lambda i: 1 + i.old_log_probs - i.rollout_log_probs, "weights are finite and not negative"),
        (lambda i: 2 * truncated(i), "equal policies need no correction"),
        (lambda i: truncated(i) / truncated(i).mean(), "the split into micro batches does not matter"),
        (
            lambda i: truncated(i) * torch.linspace(1, 2, len(i.mask)),
            "the order of the samples does not matter",
        ),
        (
            lambda i: truncated(i) + i.batch.per_token["given"].sum() * 0,
            "nan in masked tokens changes nothing",
        ),
        (
            lambda i: truncated(i) + 0 * i.old_log_probs[i.mask > 0].max(),  # there may be none
            "a batch without live tokens gives nothing",
        ),
        (lambda i: truncated(i) + 1e-3 * next(CALLS), "it is a pure function"),
        (changes_its_input, "it is a pure function"),
    ],
)
def test_a_correction_that_lacks_a_property(weigh: Weigh, missing: str) -> None:
    lacks(Corrections.with_values(weigh=staticmethod(weigh)), missing)


def test_a_column_of_the_whole_batch_is_made_again_where_the_policies_agree() -> None:
    class OverItsMean:
        def batch_columns(self, batch: TrainBatch) -> Mapping[str, Tensor]:
            ratio = (
                (batch.per_token["old_log_probs"] - batch.per_token["rollout_log_probs"]).clamp(-1, 1).exp()
            )
            live = batch.per_token["loss_mask"] > 0
            return {"over_its_mean": torch.where(live, ratio / ratio[live].mean(), 0.0).float()}

        def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
            return TokenWeights(weights=inputs.batch.per_token["over_its_mean"])

    class OfTheBatch(Corrections):
        def correction(self) -> Correction:
            return OverItsMean()

    assert not all_fails(OfTheBatch)


# --- losses of a critic --------------------------------------------------------------------------------

PerToken = Callable[[ValueInputs], Tensor]


class ValueLosses(ValueLossConformance):
    per_token: ClassVar[Any]

    def value_loss(self) -> ValueLoss:
        return lambda inputs: LossOutput(per_token=self.per_token(inputs))


def square(inputs: ValueInputs) -> Tensor:
    return 0.5 * (inputs.values - inputs.returns).square()


@pytest.mark.parametrize(
    ("per_token", "missing"),
    [
        (square, ""),
        (lambda i: -square(i), "a step brings values nearer to the returns"),
        (lambda i: 0.5 * (i.values - i.returns - 0.1).square(), "values that equal the returns stay"),
        (lambda i: square(i).detach() + i.values - i.values.detach(), "the gradient is right"),
        (lambda i: (i.values - i.returns).exp() - i.values, "values far off are finite"),
        (lambda i: square(i).nan_to_num(), "nan of a live token is not hidden"),
        (lambda i: square(i) / len(i.values), "the split into micro batches does not matter"),
        (
            lambda i: square(i) + 0 * i.values[i.mask > 0].max(),  # there may be none
            "a batch without live tokens gives nothing",
        ),
        (lambda i: square(i) * (1 + 1e-3 * next(CALLS)), "it is a pure function"),
        (
            lambda i: 0.5 * (i.values - i.batch.per_token["returns"].sum()).square(),
            "nan in masked tokens changes nothing",
        ),
    ],
)
def test_a_value_loss_that_lacks_a_property(per_token: PerToken, missing: str) -> None:
    lacks(ValueLosses.with_values(per_token=staticmethod(per_token)), missing)
