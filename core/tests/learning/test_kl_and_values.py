"""KL terms, whitening and the critic's objective: values and gradients in float64.

Sources: http://joschu.net/blog/kl-approx.html, https://arxiv.org/abs/1909.08593 (equation 2).
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import RunError
from rlcore.api.run_config import KlOptions
from rlcore.api.trainer import TokenOutputs
from rlcore.api.training import AdvantageOutput, LossInputs, LossOutput, ValueInputs
from rlcore.learning.advantages import in_rewards, prepare
from rlcore.learning.critic import ValueObjective, explained_variance, with_value_weights
from rlcore.learning.invariants import check_copy
from rlcore.learning.maths import KlKind, kl
from rlcore.learning.objective import Objective
from rlcore_ppo.config import ClippedConfig
from rlcore_ppo.value_loss import Clipped
from rlcore_testing.tensors import responses

NAN = math.nan
MASK = [1.0, 0.0, 1.0, 1.0, 1.0]
"""Of two samples, with 3 and 2 tokens."""


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch_of(mask: list[float] = MASK, **columns: Any) -> TrainBatch:
    per_token = {name: torch.as_tensor(column) for name, column in columns.items()}
    return responses([3, 2]).with_columns(
        per_token={"loss_mask": torch.tensor(mask), **per_token},
        per_sample={
            "position": torch.arange(2),
            "group": torch.arange(2),
            "rollout": torch.arange(2),
            "minibatch": torch.arange(2),
            "reward": torch.tensor([2.0, -1.0]),
        },
    )


def nothing(inputs: LossInputs) -> LossOutput:
    return LossOutput(per_token=inputs.log_probs * 0)


SLOPES = {"k1": lambda d: 1 + 0 * d, "k2": lambda d: d, "k3": lambda d: 1 - (-d).exp()}
KLS = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: (-d).exp() - 1 + d}


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("unbiased", [False, True])
def test_kl_in_the_loss(kind: KlKind, unbiased: bool) -> None:
    """coef · w · KL, times the ratio where unbiased; a NaN that is masked stays out of value and gradient."""
    new = f64(-1, NAN, -2, -0.5, -3).requires_grad_()
    reference, old, weights = f64(-2, NAN, -1, -0.5, -4), f64(-1.5, NAN, -2, -1, -2.5), f64(1, 9, 2, 3, 4)
    batch = batch_of(
        reference_log_probs=reference,
        old_log_probs=old,
        rollout_log_probs=old,
        advantages=f64(0, 0, 0, 0, 0),
        weights=weights,
    )
    settings = KlOptions(kl_coef=0.3, kl_estimator=kind, kl_unbiased=unbiased)
    result = Objective(nothing, kl=settings)(TokenOutputs(log_probs=new), batch)
    live = torch.tensor(MASK) > 0
    d, ratio = (new - reference).detach()[live], (new - old).detach()[live].exp()
    value, slope = KLS[kind](d), SLOPES[kind](d)
    expected = (ratio * value, ratio * (value + slope)) if unbiased else (value, slope)
    torch.testing.assert_close(result.total.detach(), 0.3 * (weights[live] * expected[0]).sum())
    (gradient,) = torch.autograd.grad(result.total, new)
    torch.testing.assert_close(gradient[live], 0.3 * weights[live] * expected[1])
    assert gradient[1] == 0
    torch.testing.assert_close(result.metrics["kl_reference"], value.sum())


@pytest.mark.parametrize("settings", [KlOptions(), KlOptions(kl_coef=0.3, kl_place="reward")])
def test_elsewhere_it_is_measured_only(settings: KlOptions) -> None:
    new = f64(-1, 0, -2, -0.5, -3).requires_grad_()
    batch = batch_of(
        reference_log_probs=f64(-2, 0, -1, -1, -1),
        rollout_log_probs=new.detach(),
        advantages=f64(0, 0, 0, 0, 0),
        weights=f64(1, 1, 1, 1, 1),
    )
    result = Objective(nothing, kl=settings)(TokenOutputs(log_probs=new), batch)
    assert result.total == 0
    assert result.metrics["kl_reference"] > 0


@pytest.mark.parametrize("kind", ["k3", "low_var_kl"])
def test_a_policy_far_below_the_reference_is_not_pushed_further(kind: KlKind) -> None:
    """e^-d of d = -25 is cut at d = -20, and there its linear term must not be left to pull on its own."""
    new = f64(-25, -19).requires_grad_()
    found = kl(new, f64(0, 0), torch.ones(2), kind)
    top = math.exp(20) - 21 if kind == "k3" else 10
    assert float(found.detach()[0]) == pytest.approx(top)
    (slope,) = torch.autograd.grad(found.sum(), new)
    assert slope[0] == 0
    assert slope[1] == pytest.approx(1 - math.exp(19) if kind == "k3" else 0)


PAID = {
    "k1": [1.0, 2.0, 0.0, -1.0],
    "k2": [0.5, 2.0, 0.0, 0.5],
    "k3": [math.exp(-1), math.exp(-2) + 1, 0.0, math.e - 2],
    "low_var_kl": [math.exp(-1), math.exp(-2) + 1, 0.0, math.e - 2],
}
"""The KL of the live tokens below."""


@pytest.mark.parametrize("kind", PAID)
def test_kl_in_the_reward(kind: KlKind) -> None:
    """coef 0.5: live tokens pay, and their sample with them."""
    batch = batch_of(
        rewards=[0.0, NAN, 2.0, 0.0, -1.0],
        old_log_probs=[-1.0, NAN, -2.0, -1.0, -1.0],
        reference_log_probs=[-2.0, NAN, -4.0, -1.0, 0.0],
    )
    paid = in_rewards(batch, KlOptions(kl_coef=0.5, kl_estimator=kind, kl_place="reward"))
    live, price = torch.tensor(MASK) > 0, [0.5 * one for one in PAID[kind]]
    rewards = [reward - one for reward, one in zip([0.0, 2.0, 0.0, -1.0], price, strict=True)]
    assert paid.per_token["rewards"][live].tolist() == pytest.approx(rewards)
    assert paid.per_sample["reward"].tolist() == pytest.approx(
        [2 - price[0] - price[1], -1 - price[2] - price[3]]
    )
    assert paid.per_token["rewards"].dtype == paid.per_sample["reward"].dtype == torch.float32


class Fixed:
    def __init__(self, output: Tensor | AdvantageOutput) -> None:
        self.output = output

    def estimate(self, batch: TrainBatch) -> Tensor | AdvantageOutput:
        return self.output


def prepared(output: Tensor | AdvantageOutput, mask: list[float] = MASK, **known: Any) -> TrainBatch:
    batch = batch_of(mask, rollout_log_probs=torch.zeros(5))
    return prepare(batch, Fixed(output), normalizer="per_token", constant=1, minibatches=2, **known)


def test_whitening_is_over_the_live_tokens_of_the_whole_batch() -> None:
    given = torch.tensor([1.0, NAN, 3.0, 1.0, 3.0])
    found = prepared(given, whiten_advantages=True).per_token["advantages"]
    live = found[torch.tensor(MASK) > 0]
    torch.testing.assert_close(live, torch.tensor([-1.0, 1.0, -1.0, 1.0]) * 0.75**0.5)
    assert found[1] == 0
    one = prepared(given, [1.0, 0, 0, 0, 0], whiten_advantages=True).per_token["advantages"]
    assert one.tolist() == [1, 0, 0, 0, 0]
    two = prepared(given, [1.0, 0, 1.0, 0, 0], whiten_advantages=True).per_token["advantages"]
    torch.testing.assert_close(two[[0, 2]], torch.tensor([-1.0, 1.0]) * 0.5**0.5)


def test_returns_come_along_and_are_checked() -> None:
    good = torch.tensor([1.0, NAN, 3.0, 1.0, 3.0])
    found = prepared(AdvantageOutput(advantages=good, returns=good + 1)).per_token
    assert found["returns"].tolist() == [2, 0, 4, 2, 4]
    assert "returns" not in prepared(good).per_token
    with pytest.raises(RunError, match="1 values that are not finite"):
        prepared(AdvantageOutput(advantages=good, returns=good.roll(1)))
    with pytest.raises(RunError, match="gave no returns"):
        with_value_weights(prepared(good))


def test_the_critic_learns_the_mean_over_the_live_tokens_of_a_minibatch() -> None:
    """Σ (V - R)² over 2 live tokens of each mini-batch; NaN and gradient stay out of the masked slot."""

    def square(inputs: ValueInputs) -> LossOutput:
        error = inputs.values - inputs.returns
        return LossOutput(per_token=error.square(), metrics={"far": error.abs() > 1})

    batch = with_value_weights(
        batch_of(returns=f64(1, NAN, 2, 3, 4), values=f64(0, NAN, 0, 0, 0)),
    )
    assert batch.per_token["value_weights"].tolist() == [0.5, 0, 0.5, 0.5, 0.5]
    values = f64(0, NAN, 1, 1, 1).requires_grad_()
    result = ValueObjective(square)(values, batch)
    assert result.total == (1 + 1 + 4 + 9) / 2
    (gradient,) = torch.autograd.grad(result.total, values)
    assert gradient.tolist() == [-1, 0, -1, -2, -3]
    assert {name: float(value) for name, value in result.metrics.items()} == {"tokens": 4, "far": 2}


def test_the_clipped_value_loss_knows_the_old_values() -> None:
    """The worse of the value and of what is at most 0.2 from the old one, whose slope is 0; NaN stays out.

    Live: V 0.5 of V_old 0 towards R 1 gives 0.8² and no slope; V 0.1 is inside; V 0.5 of V_old 0.5 is old.
    """
    batch = with_value_weights(
        batch_of(returns=f64(1, NAN, 1, 1, 1), values=f64(0, NAN, 0, 0.5, 0.5)),
    )
    values = f64(0.5, NAN, 0.1, 0.5, 0.5).requires_grad_()
    result = ValueObjective(Clipped(ClippedConfig(clip=0.2)))(values, batch)
    assert float(result.total.detach()) == pytest.approx((0.64 + 0.81 + 0.25 + 0.25) / 2)
    (gradient,) = torch.autograd.grad(result.total, values)
    torch.testing.assert_close(gradient, f64(0, 0, -0.9, -0.5, -0.5))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (LossOutput(per_token=torch.zeros(2)), r"returned float32 \[2\] for the loss; expected \[5\]"),
        (LossOutput(per_token=torch.zeros(5), metrics={"lr": torch.zeros(5)}), "which is core's own"),
        (LossOutput(per_token=torch.zeros(5), metrics={"tokens": torch.zeros(5)}), "which is core's own"),
    ],
)
def test_a_value_loss_is_checked(output: LossOutput, message: str) -> None:
    batch = with_value_weights(batch_of(returns=torch.zeros(5), values=torch.zeros(5)))
    with pytest.raises(RunError, match=message):
        ValueObjective(lambda inputs: output)(torch.zeros(5), batch)


def test_a_value_loss_that_puts_nan_in_masked_slots_is_masked() -> None:
    def careless(inputs: ValueInputs) -> LossOutput:
        bad = torch.where(inputs.mask > 0, inputs.values, NAN)
        return LossOutput(per_token=bad, metrics={"bad": bad})

    batch = with_value_weights(batch_of(returns=torch.zeros(5), values=torch.zeros(5)))
    result = ValueObjective(careless)(torch.ones(5), batch)
    assert result.total == 2
    assert result.metrics["bad"] == 4


def test_explained_variance() -> None:
    returns = [1.0, 99.0, 2.0, 3.0, 4.0]
    perfect = batch_of(returns=returns, values=[2.0, 7.0, 3.0, 4.0, 5.0])
    assert explained_variance(perfect) == 1
    assert explained_variance(batch_of(returns=returns, values=[5.0, 0.0, 5.0, 5.0, 5.0])) == 0
    assert explained_variance(batch_of(returns=[1.0] * 5, values=returns)) is None


def test_a_reference_that_is_not_the_policy_is_found() -> None:
    check_copy("reference", 9e-7)
    for wrong in (1.1e-6, -1.1e-6, NAN):
        with pytest.raises(RunError, match="bound 1e-06"):
            check_copy("reference", wrong)
    check_copy("reference", 9e-5, is_apart=True)
    check_copy("reference", 0.019, dtype="bf16", is_apart=True)
    with pytest.raises(RunError, match=r"bound 0\.0001"):
        check_copy("reference", 0.00011, is_apart=True)
