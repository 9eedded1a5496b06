"""`ppo_clip` against numbers worked out by hand, values and gradients, in float64.

The formulas are those of PPO (https://arxiv.org/abs/1707.06347, equation 7) and of the dual clip
(https://arxiv.org/abs/1912.09729, equation 5).
"""

import math

import pytest
import torch
from torch import Tensor

from rlcore.data.batch import TrainBatch
from rlcore.interfaces import LossInputs, LossOutput
from rlcore_grpo.config import PpoClipConfig
from rlcore_grpo.loss import PpoClip

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, *expected: float) -> None:
    torch.testing.assert_close(found.reshape(-1), f64(*expected), atol=1e-4, rtol=0)


def gradient(output: LossOutput, new: Tensor) -> Tensor:
    return torch.autograd.grad(output.per_token.sum(), new)[0]


def run(new: Tensor, old: Tensor, advantages: Tensor, **settings: float) -> LossOutput:
    n = len(new)
    lengths = torch.tensor([n])
    return PpoClip(PpoClipConfig.model_validate(settings))(
        LossInputs(
            log_probs=new,
            old_log_probs=old,
            rollout_log_probs=old,
            advantages=advantages,
            mask=torch.ones(n, dtype=torch.float64),
            segments=torch.zeros(n, dtype=torch.int64),
            samples=1,
            entropy=None,
            batch=TrainBatch(
                tokens=torch.zeros(n + 1), prompt_lengths=lengths * 0 + 1, response_lengths=lengths
            ),
        )
    )


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


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    """At ratio 1 clipped and unclipped are equal: the gradient is -A, not a half of it."""
    new = f64(-1, -2, -3).requires_grad_()
    close(gradient(run(new, new.detach(), f64(1, -1, 2)), new), -1, 1, -2)


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_extreme_ratios(dual_clip: float | None) -> None:
    """+-1000 and, with A = 0, +-inf: finite in value and gradient. A live NaN stays a NaN."""
    new = f64(1000, -1000, INF, -INF, 1000, -1000).requires_grad_()
    output = run(
        new, f64(0, 0, 0, 0, 0, 0), f64(1, 1, 0, 0, -1, -1), **({"dual_clip": dual_clip} if dual_clip else {})
    )
    assert torch.isfinite(output.per_token).all()
    assert torch.isfinite(gradient(output, new)).all()
    assert run(f64(NAN), f64(0), f64(1)).per_token.isnan().all()
