"""`cispo` against numbers worked out by hand, values and gradients, in float64.

The formula is that of MiniMax-M1 (https://arxiv.org/abs/2506.13585, equations 4 and 5); -2.9930 and .5938 are
also those of public test suites, in which CISPO is applied to PPO's examples.
"""

import torch
from torch import Tensor

from rlcore.api.training import LossInputs, LossOutput
from rlcore_grpo.config import CispoConfig
from rlcore_grpo.loss import Cispo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import INF, close, f64, gradient, loss_inputs


def run(new: Tensor, old: Tensor, advantages: Tensor, **settings: float) -> LossOutput:
    return Cispo(CispoConfig.model_validate(settings))(loss_inputs(new, old, advantages))


def test_clipped_weights() -> None:
    """Clip .2/.2, ratios .5, 1, 10: weights .8, 1, 1.2. Each token keeps its gradient, -weight A."""
    new = f64(-1.69315, -1, -0.69741).requires_grad_()
    output = run(new, f64(-1, -1, -3), f64(1, -1, -4), clip_low=0.2, clip_high=0.2)
    close(output.per_token, 1.3545, -1, -3.3476)
    close(output.per_token.sum(), -2.9930)
    close(gradient(output, new), -0.8, 1, 4.8)
    assert output.metrics["clip_fraction"].tolist() == [True, False, True]
    close(output.metrics["ratio_mean"], 0.5, 1, 10, atol=1e-3)


def test_clipped_weights_of_small_ratios() -> None:
    """Clip .2/.2, ratios .5, 1, 1.5: weights .8, 1, 1.2."""
    new = f64(-1.69315, -1, -0.59453).requires_grad_()
    output = run(new, f64(-1, -1, -1), f64(1, -1, 2), clip_low=0.2, clip_high=0.2)
    close(output.per_token, 1.3545, -1, 1.4269)
    close(output.per_token.mean(), 0.5938)
    close(gradient(output, new), -0.8, 1, -2.4)


def test_gradient_flows_through_the_log_prob_only() -> None:
    """Inside the bounds too: -ratio A, not -ratio A (1 + log pi); against autograd with constant weights."""
    new = f64(-0.5, -1.2, -3, -0.1, -2).requires_grad_()
    old, advantages = f64(-0.6, -1, -4, -2.1, -2), f64(2, -3, 1, 1, 0)
    weights = (new - old).exp().clamp(max=1.5).detach()
    expected = torch.autograd.grad((-weights * advantages * new).sum(), new)[0]
    found = gradient(run(new, old, advantages, clip_high=0.5), new)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(found, -weights * advantages, atol=1e-12, rtol=0)


def test_defaults_bound_the_weight_above_only() -> None:
    """The paper has no lower bound; ratios .01, 4, 20: weights .01, 4, 5."""
    new = f64(0.01, 4, 20).log().requires_grad_()
    close(gradient(run(new, f64(0, 0, 0), f64(1, 1, -1)), new), -0.01, -4, 5)


def test_impossible_token_with_an_advantage_is_not_hidden() -> None:
    """log 0 times an advantage: core stops a run whose loss is not finite."""
    assert run(f64(-INF), f64(0), f64(1)).per_token.isinf().all()


class TestConformance(LossConformance):
    def loss(self) -> Cispo:
        return Cispo(CispoConfig(clip_low=0.2, clip_high=0.2))

    def gradient(self, inputs: LossInputs) -> Tensor:
        """Equation 4: the clipped ratio is a constant."""
        return -(inputs.log_probs - inputs.old_log_probs).exp().clamp(0.8, 1.2) * inputs.advantages
