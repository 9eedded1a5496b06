"""`sapo` against numbers worked out by hand, values and gradients, in float64.

The formula is that of https://arxiv.org/abs/2511.20347: (4 / tau) sigmoid(tau (ratio - 1)) A.
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
from rlcore_sapo.config import SapoConfig
from rlcore_sapo.loss import Sapo

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
    return Sapo(SapoConfig.model_validate(settings))(
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


def test_gradient_by_finite_differences() -> None:
    old, advantages = f64(-1, -2, -0.5, -1.5), f64(1, -1, 2, -0.5)
    new = f64(-0.4, -2.5, -1.5, -0.2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(x, old, advantages, tau_pos=2, tau_neg=3).per_token, (new,))


def test_on_policy_gradient_is_the_policy_gradient() -> None:
    """The factor 4 / tau makes the slope 1 on policy, whatever the temperatures."""
    new = f64(-1, -2, -3).requires_grad_()
    output = run(new, new.detach(), f64(1, -1, 2), tau_pos=3, tau_neg=7)
    close(gradient(output, new), -1, 1, -2, atol=1e-12)


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
    objective = Objective(Sapo(SapoConfig()))
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
