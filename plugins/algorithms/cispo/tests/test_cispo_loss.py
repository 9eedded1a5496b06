"""`cispo` against numbers worked out by hand, values and gradients, in float64.

The formula is that of MiniMax-M1 (https://arxiv.org/abs/2506.13585, equations 4 and 5); -2.9930 and .5938 are
also those of public test suites, in which CISPO is applied to PPO's examples.
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
from rlcore_cispo.config import CispoConfig
from rlcore_cispo.loss import Cispo

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
    new: Tensor, old: Tensor, advantages: Tensor, lengths: list[int] | None = None, **settings: float
) -> LossOutput:
    batch = batch_of(lengths or [len(new)])
    return Cispo(CispoConfig.model_validate(settings))(
        LossInputs(
            log_probs=new,
            old_log_probs=old,
            rollout_log_probs=old,
            advantages=advantages,
            mask=torch.ones_like(old),
            segments=batch.segments,
            samples=len(batch),
            entropy=None,
            batch=batch,
        )
    )


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


def test_extreme_log_ratios() -> None:
    """+-1000 and, with A = 0, +-inf: finite in value and gradient. A live NaN stays a NaN."""
    new = f64(1000, -1000, INF, -INF, 1000, -1000).requires_grad_()
    output = run(new, f64(0, 0, 0, 0, 0, 0), f64(1, 1, 0, 0, -1, -1))
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
    objective = Objective(Cispo(CispoConfig(clip_low=0.2, clip_high=0.2)))
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
