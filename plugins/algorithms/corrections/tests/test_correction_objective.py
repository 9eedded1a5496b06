"""The corrections inside the objective: values and gradients in float64, and what stays as it was."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rlcore import Correction, Loss, LossInputs, LossOutput, TokenOutputs, TrainBatch
from rlcore.learning.objective import Objective
from rlcore_corrections.config import DecoupledConfig, IcePopConfig, MisConfig, OpsmConfig, TisConfig
from rlcore_corrections.weights import Decoupled, IcePop, Mis, Opsm, Tis
from rlcore_grpo.config import GspoConfig, PpoClipConfig
from rlcore_grpo.loss import PpoClip
from rlcore_grpo.sequence_loss import Gspo
from rlcore_testing.tensors import responses

NEW, ADVANTAGES, ROLLOUT = [-1.69315, -1.0, -0.59453], [1.0, -1.0, 2.0], [-0.5, -1.5, -0.8]
CLIPPED = PpoClip(PpoClipConfig(clip_low=0.2, clip_high=0.2))
SEQUENCE = Gspo(GspoConfig(clip_low=0.2, clip_high=0.2))


def f64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch_of(
    rows: list[int], *, old: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor | None = None
) -> TrainBatch:
    """Samples of these lengths; each token weighs 1 / (number of tokens)."""
    total = sum(rows)
    live = torch.ones(total, dtype=torch.float64) if mask is None else mask
    return responses(rows).with_columns(
        per_token={
            "loss_mask": live,
            "old_log_probs": old,
            "rollout_log_probs": rollout,
            "advantages": advantages,
            "weights": live / total,
        },
    )


def run(
    corrections: list[Correction],
    loss: Loss = CLIPPED,
    new: list[float] = NEW,
    rollout: list[float] = ROLLOUT,
) -> tuple[float, list[float]]:
    """The loss and its gradient in the log-probs, of a sample of three tokens whose old log-probs are -1."""
    log_probs = f64(new).requires_grad_()
    batch = batch_of([3], old=f64([-1.0] * 3), rollout=f64(rollout), advantages=f64(ADVANTAGES))
    result = Objective(loss, corrections=corrections)(TokenOutputs(log_probs=log_probs), batch)
    (gradient,) = torch.autograd.grad(result.total, log_probs)
    return float(result.total.detach()), gradient.tolist()


def near(found: float | list[float], expected: float | list[float]) -> None:
    assert found == pytest.approx(expected, abs=1e-4)


def test_token_level_tis() -> None:
    """Conformance row 7: weights [.6065, .8, .8] on PPO's [-.5, 1, -2.4]; the clipped token has no gradient.

    https://fengyao.notion.site/off-policy-rl, with the clip of https://arxiv.org/abs/1707.06347, equation 7.
    """
    value, gradient = run([Tis(TisConfig(high=0.8))])
    near(value, -0.4744)
    near(gradient, [-0.5 * 0.6065 / 3, 0.8 / 3, 0.0])


def test_sequence_level_tis() -> None:
    """Conformance row 7: GSPO's -.6057 with the weight e^-.2 = .8187 of the sample, capped at .8 and at 5.

    The mean of the log-ratios would give .9355. https://arxiv.org/abs/2507.18071
    """
    plain, slope = run([], SEQUENCE)
    near(plain, -0.6057)
    for cap, level, weight in [(0.8, "sequence", 0.8), (5, "sequence", 0.8187), (5, "geometric", 0.9355)]:
        value, gradient = run([Mis(MisConfig.model_validate({"level": level, "high": cap}))], SEQUENCE)
        near(value, weight * plain)
        near(gradient, [weight * x for x in slope])
    near(run([Mis(MisConfig(level="sequence", high=0.8))], SEQUENCE)[0], -0.4846)


def test_icepop() -> None:
    """Conformance row 10: weights [.6065, 0, .8187] at ratio 1 (https://arxiv.org/abs/2510.18855)."""
    value, gradient = run([IcePop(IcePopConfig())], new=[-1.0] * 3, rollout=[-0.5, -3.5, -0.8])
    near(value, -0.7480)
    near(gradient, [-0.6065 / 3, 0.0, -2 * 0.8187 / 3])


def test_a_dropped_sample_stays_in_the_denominator() -> None:
    """Conformance row 9: a geometric mask that keeps one of two samples halves neither count nor weight."""
    mask = Mis(MisConfig(level="geometric", mode="mask", low=0.9, high=1.1))
    old = f64([-1.0] * 6).requires_grad_()
    rollout = f64([-1.0] * 6) - f64([0.1, -0.1, 0.0, 0.5, 0.5, 0.5])
    batch = batch_of([3, 3], old=old.detach(), rollout=rollout, advantages=f64([1.0] * 6))
    result = Objective(CLIPPED, corrections=[mask])(TokenOutputs(log_probs=old), batch)
    near(float(result.total.detach()), -0.5)
    near(torch.autograd.grad(result.total, old)[0].tolist(), [-1 / 6] * 3 + [0.0] * 3)
    assert result.metrics["tokens"] == 6
    near(float(result.metrics["mis_weight"]), 3.0)


def test_weights_are_multiplied() -> None:
    """TIS [.6065, 1, 1] times IcePop's band, which drops the second token."""
    both: list[Correction] = [Tis(TisConfig(high=1)), Mis(MisConfig(mode="reject", low=0.6, high=1.5))]
    value, gradient = run(both)
    near(value, (-0.5 * 0.6065 + 0 - 2.4 * 0.8187) / 3)
    near(gradient, [-0.5 * 0.6065 / 3, 0.0, 0.0])


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_the_entropy_bonus_is_not_weighted(coef: float) -> None:
    entropy = f64([1.0, 2.0, 3.0]).requires_grad_()
    batch = batch_of([3], old=f64([-1.0] * 3), rollout=f64(ROLLOUT), advantages=f64(ADVANTAGES))
    outputs = TokenOutputs(log_probs=f64(NEW), entropy=entropy)
    corrected = Objective(CLIPPED, coef, corrections=[Tis(TisConfig(high=0.8))])(outputs, batch)
    near(float(corrected.total.detach()), -0.4744 - coef * 2)


def test_a_weight_of_0_leaves_out_a_loss_that_is_not_finite_and_a_nan_weight_does_not() -> None:
    dropped = batch_of([2], old=f64([0.0, 0.0]), rollout=f64([-9.0, 0.0]), advantages=f64([1.0, 1.0]))

    class Infinite:
        def __call__(self, inputs: LossInputs) -> LossOutput:
            return LossOutput(per_token=f64([math.inf, 1]))

    outputs = TokenOutputs(log_probs=f64([0.0, 0.0]))
    near(float(Objective(Infinite(), corrections=[IcePop(IcePopConfig())])(outputs, dropped).total), 0.5)
    hidden = batch_of([2], old=f64([math.nan, 0]), rollout=f64([0.0, 0.0]), advantages=f64([1.0, 1.0]))
    for correction in (IcePop(IcePopConfig()), Tis(TisConfig()), Decoupled(DecoupledConfig())):
        assert Objective(CLIPPED, corrections=[correction])(outputs, hidden).total.isnan()


def test_rollout_log_probs_as_old() -> None:
    """The ratio is of new to rollout, whatever the column of old ones; the gap is of the trainer's now."""
    log_probs = f64(NEW).requires_grad_()
    batch = batch_of([3], old=f64([-7.0] * 3), rollout=f64(ROLLOUT), advantages=f64(ADVANTAGES))
    objective = Objective(PpoClip(PpoClipConfig(clip_high=100.0)), rollout_as_old=True)
    result = objective(TokenOutputs(log_probs=log_probs), batch)
    ratios = [math.exp(new - rollout) for new, rollout in zip(NEW, ROLLOUT, strict=True)]
    gaps = [abs(new - rollout) for new, rollout in zip(NEW, ROLLOUT, strict=True)]
    near(float(result.metrics["ratio_mean"]), sum(ratios))
    near(float(result.metrics["kl_engine"]), sum(gaps))
    near(objective.take_gap_max(), max(gaps))
    near(float(result.total.detach()), (-ratios[0] + ratios[1] - 2 * ratios[2]) / 3)


def test_opsm_needs_a_policy_that_moved() -> None:
    """mean(old - new) = (.69315 + 0 - .40547) / 3 > 0: the token with A < 0 is dropped, no other."""
    near(run([Opsm(OpsmConfig())])[0], (-0.5 - 2.4) / 3)
    near(run([Opsm(OpsmConfig(delta=0.1))])[0], -0.6333)
    near(run([Opsm(OpsmConfig())], new=[-1.0] * 3)[0], -2 / 3)


ALL: list[Correction] = [
    Tis(TisConfig(low=0.3)),
    Mis(MisConfig(level="sequence", mode="clip")),
    Mis(MisConfig(level="geometric", mode="mask", high=3, veto=0.05)),
    IcePop(IcePopConfig()),
    Opsm(OpsmConfig()),
    Decoupled(DecoupledConfig(cap=4)),
]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_split_and_no_order_changes_anything(data: st.DataObject) -> None:
    """Any micro-batches in any order, NaN under the mask: one loss, one gradient."""
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    correction = data.draw(st.sampled_from(ALL))
    order = data.draw(st.permutations(range(len(lengths))))
    cut = data.draw(st.integers(0, len(lengths)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    total = sum(lengths)
    mask = (torch.rand(total, generator=generator) > 0.3).double()

    def column() -> Tensor:
        return torch.where(mask > 0, torch.randn(total, generator=generator).double() - 2, math.nan)

    whole = batch_of(lengths, old=column(), rollout=column(), advantages=column() + 2, mask=mask)
    whole = whole.with_columns(per_token={"slot": torch.arange(total)})
    new = (torch.randn(total, generator=generator).double() - 2).requires_grad_()
    objective = Objective(CLIPPED, corrections=[correction])

    def loss(bins: list[list[int]]) -> tuple[Tensor, Tensor]:
        parts = [whole.select(rows) for rows in bins if rows]
        results = [objective(TokenOutputs(log_probs=new[p.per_token["slot"]]), p) for p in parts]
        value = torch.stack([result.total for result in results]).sum()
        return value.detach(), torch.autograd.grad(value, new)[0]

    one = loss([list(range(len(lengths)))])
    many = loss([list(order[:cut]), list(order[cut:])])
    torch.testing.assert_close(many, one)
    assert torch.isfinite(one[1]).all()
    assert not one[1][mask == 0].any()
