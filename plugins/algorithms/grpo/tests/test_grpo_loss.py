"""`ppo_clip` against numbers worked out by hand, values and gradients, in float64.

The formulas are those of PPO (https://arxiv.org/abs/1707.06347, equation 7) and of the dual clip
(https://arxiv.org/abs/1912.09729, equation 5).
"""

import math

from torch import Tensor

from rlcore.api.training import LossOutput
from rlcore_grpo.config import PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import close, f64, gradient, loss_inputs


def run(new: Tensor, old: Tensor, advantages: Tensor, **settings: float) -> LossOutput:
    return PpoClip(PpoClipConfig.model_validate(settings))(loss_inputs(new, old, advantages))


def test_clip() -> None:
    """Clip .2, ratios .5, 1, 1.5. The third token is clipped, so it has no gradient."""
    new = f64(-1.69315, -1, -0.59453).requires_grad_()
    output = run(new, f64(-1, -1, -1), f64(1, -1, 2))
    close(output.per_token, -0.5, 1, -2.4)
    close(output.per_token.mean(), -0.6333)
    close(gradient(output, new), -0.5, 1, 0)
    assert output.metrics["clip_fraction"].tolist() == [False, False, True]
    close(output.metrics["ratio_mean"], 0.5, 1, 1.5)


def test_dual_clip_of_a_large_ratio() -> None:
    """c = 3: the ratio e^2.3 = 10 of the third token (A = -4) counts as 3 and has no gradient."""
    new = f64(-1.69315, -1, -0.69741).requires_grad_()
    output = run(new, f64(-1, -1, -3), f64(1, -1, -4), dual_clip=3)
    close(output.per_token, -0.5, 1, 12)
    close(output.per_token.sum(), 12.5)
    close(gradient(output, new), -0.5, 1, 0)
    assert output.metrics["dual_clip_fraction"].tolist() == [False, False, True]


def test_without_dual_clip_the_large_ratio_counts() -> None:
    new = f64(math.log(10)).requires_grad_()
    output = run(new, f64(0), f64(-4))
    close(output.per_token, 40)
    close(gradient(output, new), 40)
    assert "dual_clip_fraction" not in output.metrics


def test_dual_clip() -> None:
    """c = 1.5, ratios [2, 2, .5], A = [2, -2, 2]; only the third token is inside every bound."""
    new = f64(2, 2, 0.5).log().requires_grad_()
    output = run(new, f64(0, 0, 0), f64(2, -2, 2), dual_clip=1.5)
    close(output.per_token, -2.4, 3, -1)
    close(gradient(output, new), 0, 0, -1)


def test_lower_clip_acts_on_negative_advantages() -> None:
    """ratio .5 with A = -1: max(.5, .8) = .8, no gradient; with clip_low .6 it is free again."""
    for clip_low, loss, slope in [(0.2, 0.8, 0.0), (0.6, 0.5, 0.5)]:
        new = f64(math.log(0.5)).requires_grad_()
        output = run(new, f64(0), f64(-1), clip_low=clip_low)
        close(output.per_token, loss)
        close(gradient(output, new), slope)


def test_higher_upper_clip() -> None:
    """DAPO: ratio 1.25 is free under clip_high .28."""
    new = f64(math.log(1.25)).requires_grad_()
    close(gradient(run(new, f64(0), f64(1), clip_high=0.28), new), -1.25)


class TestConformance(LossConformance):
    def loss(self) -> PpoClip:
        return PpoClip(PpoClipConfig(clip_low=0.2, clip_high=0.3))


class TestDualClipConformance(LossConformance):
    def loss(self) -> PpoClip:
        return PpoClip(PpoClipConfig(clip_low=0.2, clip_high=0.2, dual_clip=1.3))
