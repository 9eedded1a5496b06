"""The loss `dpo` against numbers worked out by hand and formulas written anew, in float64.

Sources: https://arxiv.org/abs/2305.18290 (equation 7), https://ericmitchell.ai/cdpo.pdf (equation 3),
https://arxiv.org/abs/2310.12036 (equation 17).
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rlcore import Input, TokenOutputs, TrainBatch
from rlcore.learning.advantages import prepare
from rlcore.learning.metrics import WEIGHTED
from rlcore.learning.objective import Objective
from rlcore_offline.config import DpoConfig
from rlcore_offline.loss import Dpo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import responses

LENGTHS = (3, 2, 1, 4)
"""Of the chosen and the rejected response of two pairs."""

MASK = (1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0)
NEW = (-0.5, math.nan, -0.7, -1.0, -2.0, -0.3, -1.5, -0.4, math.nan, -0.2)
REFERENCE = (-0.6, math.nan, -1.0, -0.8, -1.9, -0.4, -1.2, -0.9, math.nan, -0.5)
SUMS = ((0.4, -0.3), (0.1, 0.5))
"""log π - log π_ref of the chosen and of the rejected response of each pair."""

MEANS = ((0.2, -0.15), (0.1, 0.5 / 3))


def _batch(
    lengths: tuple[int, ...] = LENGTHS,
    chosen: tuple[int, ...] = (1, 0, 1, 0),
    group: tuple[int, ...] = (0, 0, 1, 1),
) -> TrainBatch:
    rollouts = torch.tensor(group) * 2 + (1 - torch.tensor(chosen))
    batch = responses(lengths).with_columns(
        per_token={
            "loss_mask": torch.tensor(MASK),
            "reference_log_probs": torch.tensor(REFERENCE, dtype=torch.float64),
        },
        per_sample={
            "position": torch.arange(len(lengths)),
            "group": torch.tensor(group),
            "rollout": rollouts,
            "chosen": torch.tensor(chosen),
            "unit": torch.tensor(group),
        },
    )
    return prepare(batch, None, normalizer="per_rollout", constant=1, minibatches=1)


def _run(config: DpoConfig, batch: TrainBatch, log_probs: Tensor) -> tuple[Tensor, dict[str, float]]:
    result = Objective(Dpo(config))(TokenOutputs(log_probs=log_probs), batch)
    return result.total, {
        name.removeprefix(WEIGHTED): float(value)
        for name, value in result.metrics.items()
        if name.startswith(WEIGHTED)
    }


def _new() -> Tensor:
    return torch.tensor(NEW, dtype=torch.float64, requires_grad=True)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FORMS: list[tuple[DpoConfig, Callable[[float, float], float]]] = [
    (DpoConfig(beta=0.5), lambda c, r: -math.log(sigmoid(0.5 * (c - r)))),
    (
        DpoConfig(beta=2.0, label_smoothing=0.1),
        lambda c, r: -0.9 * math.log(sigmoid(2 * (c - r))) - 0.1 * math.log(sigmoid(2 * (r - c))),
    ),
    (DpoConfig(beta=0.5, form="ipo"), lambda c, r: ((c - r) - 1) ** 2),
]


@pytest.mark.parametrize("length_normalized", [False, True])
@pytest.mark.parametrize(("config", "formula"), FORMS, ids=["sigmoid", "smoothed", "ipo"])
def test_value_and_gradient(
    config: DpoConfig, formula: Callable[[float, float], float], length_normalized: bool
) -> None:
    """The mean over pairs; its gradient by finite differences; none on tokens under the mask."""
    config = config.model_copy(update={"length_normalized": length_normalized})
    pairs = MEANS if length_normalized else SUMS
    new_R, batch = _new(), _batch()
    total, _ = _run(config, batch, new_R)
    assert float(total.detach()) == pytest.approx(sum(formula(*pair) for pair in pairs) / 2, abs=1e-6)
    (gradient_R,) = torch.autograd.grad(total, new_R)
    for place, live in enumerate(MASK):
        step = torch.zeros(len(NEW), dtype=torch.float64)
        step[place] = 1e-5
        ahead, behind = (_run(config, batch, new_R.detach() + sign * step)[0] for sign in (1, -1))
        slope = float(ahead - behind) / 2e-5 if live else 0.0
        assert float(gradient_R[place]) == pytest.approx(slope, abs=1e-6)


def test_by_hand() -> None:
    """beta 1: logsigmoid(.7) = -.403186, logsigmoid(-.4) = -.913015; rewards are the log-ratios."""
    total, metrics = _run(DpoConfig(beta=1.0), _batch(), _new())
    assert float(total.detach()) == pytest.approx((0.403186 + 0.913015) / 2, abs=1e-6)
    expected = {"reward_chosen": 0.25, "reward_rejected": 0.1, "reward_margin": 0.15, "accuracy": 0.5}
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_equal_policies_have_the_loss_log_2() -> None:
    reference_R = torch.tensor(REFERENCE, dtype=torch.float64)
    total, metrics = _run(DpoConfig(), _batch(), reference_R)
    assert float(total.detach()) == pytest.approx(math.log(2), abs=1e-7)
    assert metrics["reward_margin"] == metrics["accuracy"] == 0


def test_the_column_decides_which_is_chosen_not_the_order() -> None:
    total, metrics = _run(DpoConfig(beta=1.0), _batch(chosen=(0, 1, 0, 1)), _new())
    assert float(total.detach()) == pytest.approx((1.103186 + 0.513015) / 2, abs=1e-6)
    assert metrics["reward_margin"] == pytest.approx(-0.15, abs=1e-6)


def test_a_response_in_two_samples_counts_as_one() -> None:
    """The rejected response of the second pair, as a chat whose template rewrites what was said before."""
    for config in (DpoConfig(), DpoConfig(length_normalized=True)):
        whole, _ = _run(config, _batch(), _new())
        parts, _ = _run(config, _batch((3, 2, 1, 1, 3), (1, 0, 1, 0, 0), (0, 0, 1, 1, 1)), _new())
        assert float(parts.detach()) == pytest.approx(float(whole.detach()), abs=1e-7)


class Conformance(LossConformance):
    """Of pairs, one of them without a live token."""

    policy_gradient = False
    ratio = False
    units = ((0, 4), (2, 5), (1, 3))

    def columns(self, batch: TrainBatch) -> TrainBatch:
        unit, chosen = torch.tensor([0, 2, 1, 2, 0, 1]), torch.tensor([1, 1, 1, 0, 0, 0])
        reference_R = batch.per_token["old_log_probs"] + 0.2
        return batch.with_columns(
            {Input.REFERENCE_LOG_PROBS: reference_R}, {"unit": unit, "group": unit, "chosen": chosen}
        )


class TestSigmoid(Conformance):
    def loss(self) -> Dpo:
        return Dpo(DpoConfig(beta=0.7, label_smoothing=0.1))


class TestIpo(Conformance):
    def loss(self) -> Dpo:
        return Dpo(DpoConfig(beta=0.7, form="ipo", length_normalized=True))


def test_smoothing_belongs_to_the_sigmoid() -> None:
    with pytest.raises(ValidationError, match="label_smoothing belongs to the form sigmoid"):
        DpoConfig(form="ipo", label_smoothing=0.1)


@pytest.mark.parametrize("form", ["sigmoid", "ipo"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_rank_without_a_pair_has_no_loss(form: Any, normalized: bool) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    per_token = {"loss_mask": torch.zeros(0), "reference_log_probs": torch.zeros(0, dtype=torch.float64)}
    columns = ("position", "group", "rollout", "chosen", "unit")
    empty = responses([]).with_columns(per_token, dict.fromkeys(columns, none))
    batch = prepare(empty, None, normalizer="per_rollout", constant=1, minibatches=1)
    log_probs = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    total, _ = _run(DpoConfig(form=form, length_normalized=normalized), batch, log_probs)
    assert total.item() == 0
