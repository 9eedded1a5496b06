"""`gmpo` and `vespo` against numbers worked out by hand, in float64.

The formulas are those of https://arxiv.org/abs/2507.20673, equation 4, and https://arxiv.org/abs/2602.10693.
"""

import torch
from torch import Tensor

from rlcore.api.training import LossInputs
from rlcore_grpo.config import GmpoConfig, VespoConfig
from rlcore_grpo.sequence_loss import Gmpo, Vespo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import NAN, close, f64, gradient, loss_inputs


def test_gmpo_clips_each_log_ratio_before_the_mean() -> None:
    """Log-ratios .6, 0 and -.9, clips .4, A = 1: .4, 0, -.9 have the mean -1/6, s = .84648."""
    new = f64(0.6, 0, -0.9).requires_grad_()
    output = Gmpo(GmpoConfig())(loss_inputs(new, f64(0, 0, 0), f64(1, 1, 1)))
    close(output.per_token, -0.84648, -0.84648, -0.84648)
    close(gradient(output, new), 0, -0.84648, -0.84648)
    assert output.metrics["clip_fraction"].tolist() == [True, False, False]


def test_gmpo_clips_from_below_where_the_advantage_is_negative() -> None:
    """The same log-ratios, A = -2, clip_low .3: .6, 0, -.3 have the mean .1, s = 1.10517; 2 s."""
    new = f64(0.6, 0, -0.9).requires_grad_()
    output = Gmpo(GmpoConfig(clip_low=0.3))(loss_inputs(new, f64(0, 0, 0), f64(-2, -2, -2)))
    close(output.per_token, 2.21034, 2.21034, 2.21034)
    close(gradient(output, new), 2.21034, 2.21034, 0)


def test_gmpo_is_the_gradient_of_the_geometric_mean() -> None:
    """Against the paper's objective, one sample: A exp(mean of the clipped log-ratios)."""
    new = f64(0.2, -0.5, 0.7, -0.1).requires_grad_()
    output = Gmpo(GmpoConfig())(loss_inputs(new, f64(0, 0, 0, 0), f64(3, 3, 3, 3)))
    expected = -3 * torch.minimum(new, f64(0.4, 0.4, 0.4, 0.4)).mean().exp()
    close(output.per_token.mean(), expected.item(), atol=1e-12)
    (slope,) = torch.autograd.grad(output.per_token.mean(), new)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, new)[0], atol=1e-12, rtol=0)


def test_vespo_weighs_by_the_product_of_the_ratios() -> None:
    """Log-ratios .3 and -.1: W = e^.2 = 1.22140. A = 2: W^2 exp(3 (1 - W)) = .76785.

    A = -1: W^3 exp(2 (1 - W)) = 1.82212 * .64223 = 1.17021. A masked token has no part in W.
    """
    old, advantages = f64(-1, -1, 5, -1, -1), f64(2, 2, 0, -1, -1)
    new = f64(-0.7, -1.1, NAN, -0.7, -1.1).requires_grad_()
    mask = f64(1, 1, 0, 1, 1)
    output = Vespo(VespoConfig())(loss_inputs(new, old, advantages, lengths=[3, 2], mask=mask))
    close(gradient(output, new), -1.53569, -1.53569, 0, 1.17021, 1.17021)
    close(output.per_token[:2], 1.53569 * 0.7, 1.53569 * 1.1)
    close(output.metrics["ratio_mean"][3:], 1.22140, 1.22140)


def test_vespo_fades_to_both_sides() -> None:
    """Defaults, A = 1, W = e^-2, 1 and e^2: .24512, 1 and 2.6e-7."""
    new = f64(-2, 0, 2)
    output = Vespo(VespoConfig())(loss_inputs(new, f64(0, 0, 0), f64(1, 1, 1), lengths=[1, 1, 1]))
    close(output.metrics["sequence_weight"], 0.24512, 1, 2.6e-7)


class TestGmpo(LossConformance):
    def loss(self) -> Gmpo:
        return Gmpo(GmpoConfig(clip_low=0.2, clip_high=0.3))

    def gradient(self, inputs: LossInputs) -> Tensor:
        """-s A for each token that is not clipped; s is a constant."""
        a = inputs.advantages
        token = (inputs.log_probs - inputs.old_log_probs).detach()
        clipped = torch.where(a > 0, token.clamp(max=0.3), token.clamp(min=-0.2))
        mean = f64(*[0] * inputs.samples)
        for number in inputs.segments.unique().tolist():
            mean[number] = clipped[inputs.segments == number].mean()
        return torch.where(clipped == token, -mean.exp()[inputs.segments] * a, 0.0)


class TestVespo(LossConformance):
    def loss(self) -> Vespo:
        return Vespo(VespoConfig())

    def gradient(self, inputs: LossInputs) -> Tensor:
        """-φ(W) A; φ is a constant."""
        a = inputs.advantages
        token = (inputs.log_probs - inputs.old_log_probs).detach()
        w = f64(*[0] * inputs.samples).index_add(0, inputs.segments, token).exp()[inputs.segments]
        weight = torch.where(a > 0, w**2 * (3 * (1 - w)).exp(), w**3 * (2 * (1 - w)).exp())
        return -weight * a
