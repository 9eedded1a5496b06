"""`gspo` against numbers worked out by hand and against the sequence objective, in float64.

The formulas are those of https://arxiv.org/abs/2507.18071, section 4; .9086 and -.6057 also those of public
test suites, in which GSPO is applied to PPO's example.
"""

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from rlcore.data.batch import TrainBatch
from rlcore.interfaces import LossInputs, LossOutput
from rlcore.megatron.step import TokenOutputs
from rlcore.objective import Objective, prepare
from rlcore_gspo.config import GspoConfig
from rlcore_gspo.loss import Gspo

NAN, INF = math.nan, math.inf


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(found: Tensor, *expected: float, atol: float = 1e-4) -> None:
    torch.testing.assert_close(found.detach().reshape(-1), f64(*expected), atol=atol, rtol=0)


def gradient(output: LossOutput, new: Tensor) -> Tensor:
    return torch.autograd.grad(output.per_token.sum(), new)[0]


def batch_of(lengths: list[int]) -> TrainBatch:
    return TrainBatch(
        tokens=torch.zeros(sum(lengths) + len(lengths), dtype=torch.int64),
        prompt_lengths=torch.ones(len(lengths), dtype=torch.int64),
        response_lengths=torch.tensor(lengths),
    )


def run(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    lengths: list[int] | None = None,
    mask: Tensor | None = None,
    **settings: float,
) -> LossOutput:
    batch = batch_of(lengths or [len(new)])
    return Gspo(GspoConfig.model_validate(settings))(
        LossInputs(
            log_probs=new,
            old_log_probs=old,
            rollout_log_probs=old,
            advantages=advantages,
            mask=torch.ones_like(old) if mask is None else mask,
            segments=batch.segments,
            samples=len(batch),
            entropy=None,
            batch=batch,
        )
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
    segments = batch_of(lengths).segments
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


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    new = f64(-1, -2, -3).requires_grad_()
    close(gradient(run(new, new.detach(), f64(1, -1, 2)), new), -1, 1, -2, atol=0)


def test_extreme_log_ratios() -> None:
    """+-1000 and, with A = 0, +-inf: finite in value and gradient. A live NaN stays a NaN."""
    new = f64(1000, -1000, INF, -INF, 1000, -1000).requires_grad_()
    output = run(new, f64(0, 0, 0, 0, 0, 0), f64(1, 1, 0, 0, -1, -1), lengths=[1] * 6)
    assert torch.isfinite(output.per_token).all()
    assert torch.isfinite(gradient(output, new)).all()
    assert not output.per_token[2:4].any()
    assert run(f64(NAN), f64(0), f64(1)).per_token.isnan().all()
    assert run(f64(NAN), f64(0), f64(0)).per_token.isnan().all()


LENGTHS = [3, 0, 5, 2, 1]
MASK = [1, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1]
"""The fourth sample is masked as a whole, the second one is empty."""


class Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["given"]


def prepared(behind_the_mask: float = NAN) -> TrainBatch:
    mask, draw = torch.tensor(MASK, dtype=torch.float32), torch.Generator().manual_seed(0)

    def column() -> Tensor:
        values = torch.randn(len(MASK), generator=draw, dtype=torch.float64)
        return torch.where(mask > 0, values, behind_the_mask)

    batch = batch_of(LENGTHS).with_columns(
        per_token={
            "loss_mask": mask,
            "old_log_probs": column() - 2,
            "rollout_log_probs": column() - 2,
            "given": column().float(),
        },
        per_sample={"group": torch.zeros(5, dtype=torch.int64), "rollout": torch.arange(5)},
    )
    return prepare(batch, Given(), normalizer="per_token", constant=7, minibatches=1)


def loss_gradient_metrics(
    batch: TrainBatch, bins: list[list[int]]
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Sums over the micro-batches `bins` of `batch`."""
    new = (batch.per_token["old_log_probs"] + torch.linspace(-0.6, 0.6, len(MASK))).requires_grad_()
    whole = batch.with_columns(per_token={"slot": torch.arange(len(new))})
    objective = Objective(Gspo(GspoConfig(clip_low=0.05, clip_high=0.05)))
    total, sums = new.new_zeros(()), Counter[str]()
    for rows in bins:
        part = whole.select(rows)
        result = objective(TokenOutputs(log_probs=new[part.per_token["slot"]]), part)
        total = total + result.total
        sums.update({name: float(value) for name, value in result.metrics.items()})
    return total.detach(), torch.autograd.grad(total, new)[0], dict(sums)


def test_masked_slots_have_no_part_and_no_gradient() -> None:
    """NaN or a number behind the mask: one loss, and exactly no gradient there."""
    everything = [[0, 1, 2, 3, 4]]
    total, slope, metrics = loss_gradient_metrics(prepared(NAN), everything)
    other, other_slope, _ = loss_gradient_metrics(prepared(5.0), everything)
    assert total.isfinite()
    assert torch.equal(total, other)
    assert torch.equal(slope, other_slope)
    assert not slope[torch.tensor(MASK) == 0].any()
    assert slope.any()
    assert metrics["tokens"] == sum(MASK)
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("bins", [[[0], [1], [2], [3], [4]], [[4, 2], [1], [3, 0]], [[3, 1], [2, 0, 4]]])
def test_the_split_into_micro_batches_does_not_matter(bins: list[list[int]]) -> None:
    one, many = (loss_gradient_metrics(prepared(), split) for split in ([[0, 1, 2, 3, 4]], bins))
    torch.testing.assert_close(many, one, atol=1e-12, rtol=1e-12)
