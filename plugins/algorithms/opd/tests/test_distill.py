"""`distill` against numbers worked out by hand and autograd of the whole KL; `zero`; the recipe."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from rlcore import TEACHER_TOP_LOG_PROBS, Config, Input, LossInputs, TopTokens, TrainBatch, where_live
from rlcore_opd.advantage import Zero
from rlcore_opd.config import DistillConfig
from rlcore_opd.loss import Distill, top_kl
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.losses import LossConformance
from rlcore_testing.tensors import responses

NAN = math.nan
V = 6


def inputs_of(
    new: Tensor,
    teacher: Tensor,
    *,
    old: Tensor | None = None,
    mask: Tensor | None = None,
    top: Tensor | None = None,
    teacher_top: Tensor | None = None,
) -> LossInputs:
    """As core makes them: 0 where not live, but in the columns of the batch."""
    mask = torch.ones(len(new)) if mask is None else mask
    columns = {Input.TEACHER_LOG_PROBS.value: teacher}
    if teacher_top is not None:
        columns[TEACHER_TOP_LOG_PROBS] = teacher_top
    old = new.detach() if old is None else old
    return LossInputs(
        log_probs=where_live(new, mask),
        old_log_probs=where_live(old, mask),
        rollout_log_probs=where_live(old, mask),
        advantages=torch.full_like(mask, NAN),
        mask=mask,
        segments=torch.zeros(len(new), dtype=torch.int64),
        samples=1,
        entropy=None,
        batch=responses([len(new)]).with_columns(columns),
        top_log_probs=None if top is None else where_live(top, mask[:, None]),
    )


def distributions() -> tuple[Tensor, Tensor]:
    """Log-probs of a student, with gradient, and of a teacher, [4, V] each, float64."""
    draw = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 4, V, generator=draw, dtype=torch.float64)
    return student.requires_grad_(), torch.log_softmax(teacher, 1)


def test_sampled_tokens() -> None:
    """r · (log π_old - log π_T): 0.5·e^(1), -1·e^0, and a masked token that holds NaN."""
    new = torch.tensor([-1.0, -2.0, NAN], requires_grad=True)
    old, teacher = torch.tensor([-2.0, -2.0, NAN]), torch.tensor([-2.5, -1.0, NAN])
    mask = torch.tensor([1.0, 1.0, 0.0])
    loss = Distill(DistillConfig())(inputs_of(new, teacher, old=old, mask=mask)).per_token
    torch.testing.assert_close(loss.detach(), torch.tensor([0.5 * math.e, -1.0, 0.0]))
    loss.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([0.5 * math.e, -1.0, 0.0]))


def test_the_expected_gradient_of_sampled_tokens_is_that_of_the_kl() -> None:
    logits, teacher = distributions()
    log_p = torch.log_softmax(logits, 1)
    whole = (log_p.exp() * (log_p - teacher)).sum()
    (expected,) = torch.autograd.grad(whole, logits, retain_graph=True)
    found = torch.zeros_like(logits)
    for token in range(V):
        loss = Distill(DistillConfig())(inputs_of(log_p[:, token], teacher[:, token])).per_token
        weighted = (log_p[:, token].detach().exp() * loss).sum()
        found += torch.autograd.grad(weighted, logits, retain_graph=True)[0]
    torch.testing.assert_close(found, expected)


def test_top_k_by_hand() -> None:
    """Student .5 .3 and .2 for the rest, teacher .25 .6 and .15."""
    student, teacher = torch.tensor([[0.5, 0.3]]).log(), torch.tensor([[0.25, 0.6]]).log()
    expected = 0.5 * math.log(2) + 0.3 * math.log(0.5) + 0.2 * math.log(0.2 / 0.15)
    assert float(top_kl(student, teacher)) == pytest.approx(expected)


def test_top_k_of_the_whole_vocabulary_is_the_kl() -> None:
    logits, teacher = distributions()
    log_p = torch.log_softmax(logits, 1)
    whole = (log_p.exp() * (log_p - teacher)).sum(1)
    found = top_kl(log_p, teacher)
    torch.testing.assert_close(found, whole)
    expected = torch.autograd.grad(whole.sum(), logits, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], expected)


@pytest.mark.parametrize("k", [1, 2, V - 1])
def test_top_k_is_a_lower_bound_with_the_gradient_of_the_lumped_kl(k: int) -> None:
    logits, teacher = distributions()
    log_p = torch.log_softmax(logits, 1)
    ids = teacher.topk(k, 1).indices
    found = top_kl(log_p.gather(1, ids), teacher.gather(1, ids))
    whole = (log_p.exp() * (log_p - teacher)).sum(1)
    assert bool((found > 0).all())
    assert bool((found <= whole + 1e-12).all())

    def lumped(x: Tensor) -> Tensor:
        p, q = torch.softmax(x, 1), teacher.exp()
        rest = torch.ones_like(p).scatter(1, ids, 0.0)
        p = torch.cat([p.gather(1, ids), (p * rest).sum(1, keepdim=True)], 1)
        q = torch.cat([q.gather(1, ids), (q * rest).sum(1, keepdim=True)], 1)
        return (p * (p / q).log()).sum()

    expected = torch.autograd.grad(lumped(logits), logits)[0]
    torch.testing.assert_close(torch.autograd.grad(found.sum(), logits)[0], expected)


def test_top_k_in_the_loss() -> None:
    """Metrics, the mask, and 0 with no slope where student and teacher agree."""
    logits, teacher = distributions()
    log_p = torch.log_softmax(logits, 1).float()
    ids = teacher.topk(2, 1).indices
    theirs = teacher.float().gather(1, ids)
    theirs[3] = NAN
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0])
    mine = log_p.gather(1, ids)
    seen = inputs_of(log_p[:, 0], teacher[:, 0].float(), mask=mask, top=mine, teacher_top=theirs)
    output = Distill(DistillConfig(top_k=2))(seen)
    assert bool(torch.isfinite(output.per_token).all())
    assert set(output.metrics) == {"kl_teacher_top", "top_mass"}
    torch.testing.assert_close(output.metrics["top_mass"][:3], mine[:3].detach().exp().sum(1))
    where_live(output.per_token, mask).sum().backward()
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())
    assert not logits.grad[3].any()
    logits.grad = None
    same = inputs_of(log_p[:, 0], teacher[:, 0].float(), top=mine, teacher_top=mine.detach())
    loss = Distill(DistillConfig(top_k=2))(same).per_token
    torch.testing.assert_close(loss, torch.zeros(4), atol=1e-6, rtol=0)


def test_zero() -> None:
    batch = responses([2]).with_columns({"rewards": torch.tensor([1.0, NAN])})
    assert torch.equal(Zero(Config()).estimate(batch), torch.zeros(2))


class TestSampledConformance(LossConformance):
    policy_gradient = False

    def columns(self, batch: TrainBatch) -> TrainBatch:
        old_R = batch.per_token.get("old_log_probs", torch.zeros(int(batch.response_lengths.sum())))
        # a gap of both signs
        return batch.with_columns({Input.TEACHER_LOG_PROBS: 1.5 * old_R + 1})

    def loss(self) -> Distill:
        return Distill(DistillConfig())


class TestTopConformance(LossConformance):
    """Two tokens of each position: the sampled one, and one that has six tenths of what is left."""

    policy_gradient = False
    ratio = False

    def columns(self, batch: TrainBatch) -> TrainBatch:
        theirs_R = batch.per_token["old_log_probs"]
        top_RK = torch.stack([theirs_R, (0.3 * (1 - theirs_R.exp())).log()], 1)
        return batch.with_columns({Input.TEACHER_LOG_PROBS: theirs_R, TEACHER_TOP_LOG_PROBS: top_RK})

    def top_log_probs(self, new_R: Tensor) -> Tensor:
        return torch.stack([new_R, (0.6 * (1 - new_R.exp())).log()], 1)

    def loss(self) -> Distill:
        return Distill(DistillConfig(top_k=2))


class TestZeroConformance(EstimatorConformance):
    scope = "sample"
    idle = True

    def estimator(self) -> Zero:
        return Zero(Config())


def test_settings() -> None:
    assert DistillConfig().top_tokens is None
    assert DistillConfig(top_k=3, top_of="student").top_tokens == TopTokens(count=3, of="student")
    assert DistillConfig.needs == {Input.TEACHER_LOG_PROBS}
    with pytest.raises(ValidationError, match="top_k"):
        DistillConfig(top_k=-1)
