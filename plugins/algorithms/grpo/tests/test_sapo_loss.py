"""`sapo` against numbers worked out by hand, values and gradients, in float64.

The formula is that of https://arxiv.org/abs/2511.20347: (4 / tau) sigmoid(tau (ratio - 1)) A.
"""

from torch import Tensor

from rlcore.api.training import LossOutput
from rlcore_grpo.config import SapoConfig
from rlcore_grpo.loss import Sapo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import close, f64, gradient, loss_inputs


def run(new: Tensor, old: Tensor, advantages: Tensor, **settings: float) -> LossOutput:
    return Sapo(SapoConfig.model_validate(settings))(loss_inputs(new, old, advantages))


def test_gate() -> None:
    """tau 1 and 1.05, ratios .5, 1, 1.5, A = 1, -1, 2, worked out by hand.

    p = sigmoid(-.5), .5, sigmoid(.5) = .37754, .5, .62246. Values -(4 / tau) p A;
    gradients -4 p (1 - p) ratio A.
    """
    new = f64(0.5, 1, 1.5).log().requires_grad_()
    output = run(new, f64(0, 0, 0), f64(1, -1, 2))
    close(output.per_token, -1.5102, 1.9048, -4.9797)
    close(gradient(output, new), -0.4700, 1, -2.8201)
    close(output.metrics["gate_mean"], 0.9400, 1, 0.9400)
    close(output.metrics["ratio_mean"], 0.5, 1, 1.5)


def test_temperatures_belong_to_the_sign_of_the_advantage() -> None:
    """tau_pos 1, tau_neg 2, ratio 1.5: p = sigmoid(.5) = .62246 and sigmoid(1) = .73106."""
    new = f64(1.5, 1.5).log().requires_grad_()
    output = run(new, f64(0, 0), f64(1, -1), tau_pos=1, tau_neg=2)
    close(output.per_token, -2.4898, 1.4621)
    close(gradient(output, new), -1.4101, 1.1797)


def test_defaults_fade_negative_advantages_faster() -> None:
    """ratio 3: 4 p (1 - p) of sigmoid(2) = .41997 and of sigmoid(2.1) = .38878."""
    output = run(f64(3, 3).log(), f64(0, 0), f64(1, -1))
    close(output.metrics["gate_mean"], 0.41997, 0.38878)


def test_no_token_is_cut_off() -> None:
    """A ratio of 1.5 with A > 0 is beyond any clip of .2, and still has a gradient; so has .5 with A < 0."""
    new = f64(1.5, 0.5).log().requires_grad_()
    close(gradient(run(new, f64(0, 0), f64(1, -1)), new), -1.4101, 0.4671)


class TestConformance(LossConformance):
    def loss(self) -> Sapo:
        return Sapo(SapoConfig(tau_pos=2, tau_neg=3))
