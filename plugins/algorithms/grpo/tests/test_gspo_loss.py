"""`gspo` against numbers worked out by hand and against the sequence objective, in float64.

The formulas are those of https://arxiv.org/abs/2507.18071, section 4; .9086 and -.6057 also those of public
test suites, in which GSPO is applied to PPO's example.
"""

import torch
from torch import Tensor

from rlcore.api.training import LossInputs, LossOutput
from rlcore_grpo.config import GspoConfig
from rlcore_grpo.sequence_loss import Gspo
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import NAN, close, f64, gradient, loss_inputs, responses


def run(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    lengths: list[int] | None = None,
    mask: Tensor | None = None,
    **settings: float,
) -> LossOutput:
    return Gspo(GspoConfig.model_validate(settings))(
        loss_inputs(new, old, advantages, lengths=lengths, mask=mask)
    )


ROW = (f64(-1.69315, -1, -0.59453), f64(-1, -1, -1), f64(1, -1, 2))
"""Log-ratios -ln 2, 0, ln 1.5: the sequence ratio is .75^(1/3) = .9086."""


def test_sequence_ratio_inside_the_clip() -> None:
    """Clip .2: -s A for each token, mean -.6057; token ratios (.5, 1, 1.5) would give a mean of -.6333."""
    new = ROW[0].clone().requires_grad_()
    output = run(new, *ROW[1:], clip_low=0.2, clip_high=0.2)
    close(output.per_token, -0.9086, 0.9086, -1.8171)
    close(output.per_token.mean(), -0.6057)
    close(gradient(output, new), -0.9086, 0.9086, -1.8171)
    close(output.metrics["ratio_mean"], 0.9086, 0.9086, 0.9086)
    assert not output.metrics["clip_fraction"].any()


def test_sequence_ratio_below_the_clip() -> None:
    """Clip .05: s = .9086 counts as .95 where A < 0, without a gradient; where A > 0 it stays."""
    new = ROW[0].clone().requires_grad_()
    output = run(new, *ROW[1:], clip_low=0.05, clip_high=0.05)
    close(output.per_token, -0.9086, 0.95, -1.8171)
    close(gradient(output, new), -0.9086, 0, -1.8171)
    assert output.metrics["clip_fraction"].tolist() == [False, True, False]


def test_sequence_ratio_above_the_clip() -> None:
    """Log-ratios .3, -.1, .1: s = e^.1 = 1.1052, over 1.05: no gradient where A > 0, for any token."""
    new = f64(0.3, -0.1, 0.1).requires_grad_()
    output = run(new, f64(0, 0, 0), f64(2, 2, -1), clip_low=0.02, clip_high=0.05)
    close(output.per_token, -2.1, -2.1, 1.1052)
    close(gradient(output, new), 0, 0, 1.1052)


def test_clips_of_the_paper_are_the_defaults() -> None:
    """Section 5.1: 3e-4 and 4e-4. One sample inside and one outside on either side."""
    new = f64(3.5e-4, 4.5e-4, -2.5e-4, -3.5e-4).requires_grad_()
    output = run(new, f64(0, 0, 0, 0), f64(1, 1, -1, -1), lengths=[1, 1, 1, 1])
    close(gradient(output, new), -1.00035, 0, 0.99975, 0, atol=1e-6)
    close(output.per_token, -1.00035, -1.0004, 0.99975, 0.9997, atol=1e-6)


def test_each_sample_has_its_own_ratio() -> None:
    """Means of log-ratios (.2, .4) and (-.3): ratios e^.3 and e^-.3; an empty sample between them."""
    new = f64(0.2, 0.4, -0.3)
    output = run(new, f64(0, 0, 0), f64(1, 1, 1), lengths=[2, 0, 1], clip_high=1, clip_low=1)
    close(output.metrics["ratio_mean"], 1.3499, 1.3499, 0.7408)


def test_masked_tokens_count_neither_in_the_sum_nor_in_the_length() -> None:
    """The first test with two masked slots put in: 1/3, not 1/5, of the same log-ratio."""
    new = f64(-1.69315, NAN, -1, -0.59453, 3).requires_grad_()
    mask = f64(1, 0, 1, 1, 0)
    output = run(new, f64(-1, 5, -1, -1, NAN), f64(1, 0, -1, 2, 0), mask=mask, clip_low=0.2, clip_high=0.2)
    close(output.per_token, -0.9086, 0, 0.9086, -1.8171, 0)
    close(gradient(output, new), -0.9086, 0, 0.9086, -1.8171, 0)


def test_gradient_is_that_of_the_sequence_objective() -> None:
    """Against GSPO itself (equation 5), the mean of max(-s A, -clip(s) A) over samples."""
    lengths, draw = [3, 1, 4, 2], torch.Generator().manual_seed(3)
    new = (0.2 * torch.randn(10, generator=draw, dtype=torch.float64)).requires_grad_()
    advantage = f64(1, -2, 0.5, -1)
    segments = responses(lengths).segments
    output = run(new, new.new_zeros(10), advantage[segments], lengths=lengths, clip_low=0.05, clip_high=0.05)
    weights = 1 / (4 * torch.tensor(lengths, dtype=torch.float64)[segments])
    found = (weights * output.per_token).sum()

    terms = []
    for tokens, a in zip(new.split(lengths), advantage, strict=True):
        s = tokens.mean().exp()
        terms.append(torch.maximum(-s * a, -s.clamp(0.95, 1.05) * a))
    expected = torch.stack(terms).mean()

    slope = torch.autograd.grad(found, new)[0]
    close(found, expected.detach().item(), atol=1e-12)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, new)[0], atol=1e-12, rtol=0)
    dead = [not part.any() for part in slope.split(lengths)]
    assert any(dead)
    assert not all(dead)


class TestConformance(LossConformance):
    def loss(self) -> Gspo:
        return Gspo(GspoConfig(clip_low=0.05, clip_high=0.05))

    def gradient(self, inputs: LossInputs) -> Tensor:
        """Equation 14: s A for each token of a sample that is not clipped; s is a constant."""
        a = inputs.advantages
        ratio = (inputs.log_probs - inputs.old_log_probs).detach()
        means = [
            ratio[inputs.segments == number].mean() if (inputs.segments == number).any() else f64(0)[0]
            for number in range(inputs.samples)
        ]
        s = torch.stack(means).exp()[inputs.segments]
        clipped = ((s > 1.05) & (a > 0)) | ((s < 0.95) & (a < 0))
        return torch.where(clipped, 0.0, -s * a)
