"""`dppo` against numbers worked out by hand, in float64 (https://arxiv.org/abs/2602.04879)."""

import pytest
from torch import Tensor

from rlcore.api.training import LossOutput
from rlcore_grpo.config import DppoConfig
from rlcore_grpo.loss import Dppo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import close, f64, gradient, loss_inputs

OLD = f64(0.5, 0.5, 0.01, 0.5, 0.5).log()
NEW = f64(0.7, 0.6, 0.05, 0.3, 0.7).log()
"""Ratios 1.4, 1.2, 5, .6, 1.4; total variations .2, .1, .04, .2, .2."""


def run(advantages: Tensor, new: Tensor = NEW, **settings: object) -> LossOutput:
    return Dppo(DppoConfig.model_validate(settings))(loss_inputs(new, OLD, advantages))


def test_total_variation() -> None:
    """Bound .15: the first and the fourth go on away from the old policy; the last comes back."""
    new = NEW.clone().requires_grad_()
    output = run(f64(1, 1, 1, -1, -1), new)
    close(output.metrics["divergence"], 0.2, 0.1, 0.04, 0.2, 0.2)
    close(output.per_token, 0, -1.2, -5, 0, 1.4)
    close(gradient(output, new), 0, -1.2, -5, 0, 1.4)
    assert output.metrics["clip_fraction"].tolist() == [True, False, False, True, False]


def test_kl_of_the_two_events() -> None:
    """.5 ln(.5/.7) + .5 ln(.5/.3) = .08718, .5 ln(.5/.6) + .5 ln(.5/.4) = .02041, and so on."""
    output = run(f64(1, 1, 1, -1, -1), divergence="kl", high=0.05, low=0.1)
    close(output.metrics["divergence"], 0.08718, 0.02041, 0.02473, 0.08718, 0.08718)
    close(output.per_token, 0, -1.2, -5, 0.6, 1.4)


def test_each_side_has_its_bound() -> None:
    close(run(f64(1, 1, 1, -1, -1), high=0.25).per_token, -1.4, -1.2, -5, 0, 1.4)
    close(run(f64(1, 1, 1, -1, -1), low=0.25).per_token, 0, -1.2, -5, 0.6, 1.4)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_a_certain_token_is_no_distance_away(divergence: str) -> None:
    """p = 1 before and after: 0, not NaN."""
    inputs = loss_inputs(f64(0, -0.5), f64(0, 0), f64(1, 1))
    found = Dppo(DppoConfig.model_validate({"divergence": divergence}))(inputs).metrics["divergence"]
    close(found, 0, 0.39347 if divergence == "tv" else 0.5)


class TestTotalVariation(LossConformance):
    def loss(self) -> Dppo:
        return Dppo(DppoConfig(low=0.1, high=0.1))


class TestKl(LossConformance):
    def loss(self) -> Dppo:
        return Dppo(DppoConfig(divergence="kl", low=0.02, high=0.03))
