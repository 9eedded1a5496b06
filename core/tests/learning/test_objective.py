"""`rlcore.learning.objective` and `rlcore.learning.advantages`: the reduction that core owns."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import Input
from rlcore.api.config import Config
from rlcore.api.errors import NotFiniteError, PluginError, RunError
from rlcore.api.trainer import LossResult, TokenOutputs
from rlcore.api.training import (
    AdvantageEstimator,
    AdvantageOutput,
    CorrectionInputs,
    Loss,
    LossInputs,
    LossOutput,
    TokenWeights,
)
from rlcore.learning.advantages import WithTeacher, advantage_metrics, prepare
from rlcore.learning.critic import ValueObjective
from rlcore.learning.maths import Normalizer, importance_ratio
from rlcore.learning.metrics import WEIGHTED
from rlcore.learning.minibatch import assign_minibatches
from rlcore.learning.objective import Objective
from rlcore_grpo.config import CispoConfig, GspoConfig, PpoClipConfig, SapoConfig
from rlcore_grpo.loss import Cispo, PpoClip, Sapo
from rlcore_grpo.sequence_loss import Gspo
from rlcore_offline.config import DpoConfig, SftConfig
from rlcore_offline.loss import Dpo, Sft
from rlcore_opd.config import DistillConfig
from rlcore_opd.loss import Distill
from rlcore_reinforce.loss import Reinforce
from rlcore_testing.tensors import responses

NO_TENSOR: Any = 0.5
NORMALIZERS: list[Normalizer] = ["per_rollout", "per_prompt", "per_token", "constant"]


def clipped(inputs: LossInputs) -> LossOutput:
    """PPO's loss, clip .2."""
    ratio = importance_ratio(inputs.log_probs, inputs.old_log_probs, inputs.mask)
    a = inputs.advantages
    return LossOutput(
        per_token=torch.maximum(-ratio * a, -ratio.clamp(0.8, 1.2) * a), metrics={"ratio_mean": ratio}
    )


def reinforce(inputs: LossInputs) -> LossOutput:
    return LossOutput(per_token=-inputs.advantages * inputs.log_probs)


class Given:
    """An estimator that returns what it was given."""

    def __init__(self, advantages: Tensor) -> None:
        self.advantages = advantages

    def estimate(self, batch: TrainBatch) -> Tensor:
        return self.advantages


def make_batch(lengths: list[int], seed: int = 0, rollouts: list[int] | None = None) -> TrainBatch:
    """Random float64 columns; about a third of the response tokens is masked, and holds NaN."""
    n, total, generator = len(lengths), sum(lengths), torch.Generator().manual_seed(seed)
    mask = (torch.rand(total, generator=generator) > 0.3).float()

    def column() -> Tensor:
        values = torch.randn(total, generator=generator, dtype=torch.float64)
        return torch.where(mask > 0, values, math.nan)

    return responses(lengths).with_columns(
        per_token={
            "loss_mask": mask,
            "old_log_probs": column() - 2,
            "rollout_log_probs": column() - 2,
            Input.REFERENCE_LOG_PROBS: column() - 2,
            Input.TEACHER_LOG_PROBS: column() - 2,
            "given": column().float(),
        },
        per_sample={
            "position": torch.arange(n),
            "group": torch.zeros(n, dtype=torch.int64),
            "rollout": torch.tensor(rollouts or list(range(n))),
        },
    )


def prepared(batch: TrainBatch, normalizer: Normalizer = "per_rollout", minibatches: int = 1) -> TrainBatch:
    return prepare(
        batch, Given(batch.per_token["given"]), normalizer=normalizer, constant=7, minibatches=minibatches
    )


def loss_and_gradient(
    batch: TrainBatch, new: Tensor, bins: list[list[int]], entropy_coef: float = 0.0, loss: Loss = clipped
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sums over the micro-batches `bins` of `batch`; gradients in `new` and in the entropy, stacked."""
    new, entropy = new.clone().requires_grad_(), new.sin().requires_grad_()
    objective = Objective(loss, entropy_coef)
    whole = batch.with_columns(per_token={"slot": torch.arange(len(new))})
    results: list[LossResult] = []
    for rows in bins:
        part = whole.select(rows)
        slot = part.per_token["slot"]
        results.append(objective(TokenOutputs(log_probs=new[slot], entropy=entropy[slot]), part))
    total = torch.stack([result.total for result in results]).sum()
    gradient = torch.stack(torch.autograd.grad(total, [new, entropy], materialize_grads=True), 1)
    names = results[0].metrics.keys()
    sums = {name: torch.stack([result.metrics[name].double() for result in results]).sum() for name in names}
    return total.detach(), gradient, sums


LOSSES: dict[str, Loss] = {
    "clipped": clipped,
    "ppo_clip": PpoClip(PpoClipConfig(dual_clip=1.3)),
    "gspo": Gspo(GspoConfig(clip_low=0.05, clip_high=0.05)),
    "cispo": Cispo(CispoConfig()),
    "sapo": Sapo(SapoConfig()),
    "reinforce": Reinforce(Config()),
    "sft": Sft(SftConfig()),
    "dpo": Dpo(DpoConfig(beta=0.5)),
    "distill": Distill(DistillConfig()),
}
"""All that read no more columns than `make_batch` gives."""


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_loss_and_gradient_do_not_depend_on_the_split_or_the_order(name: str, data: st.DataObject) -> None:
    """Any micro-batches, any order of samples, rollouts shared between samples: one loss, one gradient.

    Of `dpo`, two samples after each other are a pair, which no split takes apart.
    """
    size = 2 if name == "dpo" else 1
    units = data.draw(st.integers(1, 8 // size))
    n = size * units
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    rollouts = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) if size == 1 else None
    normalizer = data.draw(st.sampled_from(NORMALIZERS))
    place = data.draw(st.lists(st.integers(0, 3), min_size=units, max_size=units))
    order = data.draw(st.permutations(range(units)))
    rows = torch.arange(n)
    batch = make_batch(lengths, seed=data.draw(st.integers(0, 99)), rollouts=rollouts)
    batch = prepared(
        batch.with_columns(per_sample={"unit": rows // size, "group": rows // size, "chosen": 1 - rows % 2}),
        normalizer,
    )
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    new = torch.randn(sum(lengths), dtype=torch.float64, generator=draw) - 2
    bins = [[size * u + k for u in order if place[u] == b for k in range(size)] for b in range(4)]
    find = partial(loss_and_gradient, batch, new, entropy_coef=0.1, loss=LOSSES[name])
    one, one_grad, one_sums = find([list(range(n))])
    many, many_grad, many_sums = find([rows for rows in bins if rows])
    torch.testing.assert_close(many, one)
    torch.testing.assert_close(many_grad, one_grad)
    assert many_sums.keys() == one_sums.keys()
    for metric, found in many_sums.items():
        tolerance = 1e-6 if metric.startswith(WEIGHTED) else None  # the weights of some are fp32
        torch.testing.assert_close(found, one_sums[metric], atol=tolerance, rtol=tolerance)
    assert not one_grad[batch.per_token["loss_mask"] == 0].any()


def test_per_prompt_is_the_mean_of_the_means_of_groups() -> None:
    """Three rollouts in two groups, whatever their lengths: each group has half of the weight."""
    batch = make_batch([4, 2, 6], rollouts=[0, 1, 2])
    batch = batch.with_columns(per_sample={"group": torch.tensor([3, 3, 1])})
    live = {name: torch.ones(12) for name in batch.per_token}
    batch = prepared(batch.with_columns(per_token=live), "per_prompt")
    torch.testing.assert_close(batch.per_token["weights"], torch.tensor([1 / 12] * 12))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_masked_slots_have_exactly_no_part(normalizer: Normalizer) -> None:
    """NaN or a number in a masked slot, in any column or output: the same value, and exactly no gradient."""
    batch = prepared(make_batch([4, 0, 6, 3]), normalizer)
    mask = batch.per_token["loss_mask"]
    clean = {name: torch.where(mask > 0, column, 5.0) for name, column in batch.per_token.items()}
    new = torch.randn(13, dtype=torch.float64) - 2
    dirty = torch.where(mask > 0, new, math.nan)
    found, gradient, sums = loss_and_gradient(batch, dirty, [[0, 1, 2, 3]], entropy_coef=0.1)
    clean["loss_mask"] = mask
    wanted, wanted_gradient, wanted_sums = loss_and_gradient(
        batch.with_columns(per_token=clean), new, [[0, 1, 2, 3]], entropy_coef=0.1
    )
    assert torch.isfinite(found)
    assert found == wanted
    assert torch.equal(gradient, wanted_gradient)
    assert sums == wanted_sums
    assert not gradient[mask == 0].any()
    assert gradient[mask > 0].all(1).any()


def test_a_loss_that_puts_nan_in_masked_slots_is_masked() -> None:
    def careless(inputs: LossInputs) -> LossOutput:
        bad = torch.where(inputs.mask > 0, inputs.log_probs, math.nan)
        return LossOutput(per_token=bad, metrics={"bad": bad})

    batch = prepared(make_batch([4, 6]))
    result = Objective(careless)(TokenOutputs(log_probs=torch.zeros(10)), batch)
    assert result.total == 0
    assert result.metrics["bad"] == 0


def test_a_loss_need_not_mask_anything() -> None:
    """What it sees is finite, or the slope of its arithmetic would carry a NaN on."""

    def unaware(inputs: LossInputs) -> LossOutput:
        ratio = (inputs.log_probs - inputs.old_log_probs).exp()
        assert inputs.entropy is not None
        return LossOutput(per_token=-ratio * inputs.advantages / (1 + inputs.entropy))

    batch = prepared(make_batch([4, 6, 3]))
    mask = batch.per_token["loss_mask"]
    new, entropy = (
        torch.where(mask > 0, torch.rand(13, dtype=torch.float64), math.nan).requires_grad_()
        for _ in range(2)
    )
    result = Objective(unaware)(TokenOutputs(log_probs=new, entropy=entropy), batch)
    for gradient in torch.autograd.grad(result.total, [new, entropy]):
        assert gradient.isfinite().all()
        assert not gradient[mask == 0].any()
        assert gradient[mask > 0].all()


def test_a_fully_masked_sample_contributes_nothing() -> None:
    """The loss of a batch is the same with and without it, under the default normalizer."""
    batch = make_batch([4, 6, 3])
    dead = batch.segments == 1
    columns = dict(batch.per_token)
    columns["loss_mask"] = torch.where(dead, 0.0, columns["loss_mask"])
    batch = batch.with_columns(per_token=columns)
    new = torch.randn(13, dtype=torch.float64)
    with_it, _, _ = loss_and_gradient(prepared(batch), new, [[0, 1, 2]])
    without, _, _ = loss_and_gradient(prepared(batch.select([0, 2])), new[~dead], [[0, 1]])
    torch.testing.assert_close(with_it, without)


def test_missing_old_log_probs_are_the_new_ones() -> None:
    """The one-step shortcut: loss, gradient and metrics as with the column, bit for bit; ppo_kl exactly 0."""
    batch = prepared(make_batch([4, 6, 3]))
    mask = batch.per_token["loss_mask"]
    new = torch.randn(13, dtype=torch.float64)
    given = batch.with_columns(per_token={"old_log_probs": new})
    left_out = replace(batch, per_token={k: v for k, v in batch.per_token.items() if k != "old_log_probs"})
    with_column = loss_and_gradient(given, new, [[0, 2], [1]])
    without = loss_and_gradient(left_out, new, [[0, 2], [1]])
    assert with_column[0] == without[0]
    assert torch.equal(with_column[1], without[1])
    assert with_column[2] == without[2]
    assert without[2]["ppo_kl"] == 0
    assert without[1][mask > 0, 0].all()


def test_reinforce() -> None:
    """REINFORCE, A=[1,-1,2], lp=[-.5,-1,-1.5]: loss .8333, gradient -A/3 (http://incompleteideas.net/book)."""
    batch = replace(
        make_batch([3]), per_token={"loss_mask": torch.ones(3), "rollout_log_probs": torch.zeros(3)}
    )
    batch = prepare(
        batch, Given(torch.tensor([1.0, -1, 2])), normalizer="per_token", constant=1, minibatches=1
    )
    new = torch.tensor([-0.5, -1, -1.5], requires_grad=True)
    result = Objective(reinforce)(TokenOutputs(log_probs=new), batch)
    assert result.total.item() == pytest.approx(0.8333, abs=1e-4)
    (gradient,) = torch.autograd.grad(result.total, [new])
    assert gradient.tolist() == pytest.approx([-1 / 3, 1 / 3, -2 / 3])


def test_entropy_bonus_and_metrics() -> None:
    """Two live tokens of three: total = mean(-A lp) - .5 mean(H); sums and the largest gap by hand."""
    ones = torch.tensor([1.0, 1, 0])
    batch = replace(
        make_batch([3]),
        per_token={
            "loss_mask": ones,
            "rollout_log_probs": torch.tensor([-1.0, -2.5, 9]),
            "old_log_probs": torch.tensor([-1.5, -2, 9]),
        },
    )
    batch = prepare(batch, Given(torch.ones(3)), normalizer="per_rollout", constant=1, minibatches=1)
    entropy = torch.tensor([1.0, 3, 100], requires_grad=True)
    objective = Objective(reinforce, 0.5)
    result = objective(TokenOutputs(log_probs=torch.tensor([-1.0, -2, 3]), entropy=entropy), batch)
    assert result.total.item() == 1.5 - 0.5 * 2
    (gradient,) = torch.autograd.grad(result.total, [entropy])
    assert gradient.tolist() == [-0.25, -0.25, 0]
    found = {name: value.item() for name, value in result.metrics.items()}
    assert found.pop("kl_engine_k3") == pytest.approx(math.exp(-0.5) - 1 + 0.5 + math.exp(0.5) - 1 - 0.5)
    assert found == {"tokens": 2, "fresh": 2, "entropy": 4, "ppo_kl": -0.5, "ppo_gap": 0.5, "kl_engine": 1}
    assert objective.take_gap_max() == 0.5
    assert objective.take_gap_max() == 0


# --- prepare -------------------------------------------------------------------------------------------


def test_weights_are_fixed_within_each_minibatch() -> None:
    """The weights of a mini-batch are those it would have alone, and its weights sum to 1."""
    batch = prepared(make_batch([4, 5, 6, 3, 4], rollouts=[8, 8, 3, 5, 5]), minibatches=2)
    assert batch.per_sample["minibatch"].tolist() == [0, 0, 0, 1, 1]
    for number, rows in enumerate([[0, 1, 2], [3, 4]]):
        part = batch.select(rows)
        alone = prepared(
            part.with_columns(per_sample={"minibatch": torch.zeros(len(rows), dtype=torch.int64)})
        )
        assert torch.equal(part.per_token["weights"], alone.per_token["weights"])
        assert part.per_token["weights"].sum().item() == pytest.approx(1), number


@pytest.mark.parametrize(
    ("rollouts", "minibatches", "expected"),
    [
        ([0, 1, 2, 3], 2, [0, 0, 1, 1]),
        ([9, 9, 4, 4, 4, 7], 3, [0, 0, 1, 1, 1, 2]),
        ([9, 4, 9, 4], 2, [0, 1, 0, 1]),
        ([0, 1, 2, 3, 4], 2, [0, 0, 0, 1, 1]),
        ([0, 1], 4, [0, 1]),
        ([], 3, []),
    ],
)
def test_minibatches_keep_rollouts_whole(rollouts: list[int], minibatches: int, expected: list[int]) -> None:
    found = assign_minibatches(torch.tensor(rollouts, dtype=torch.int64), minibatches)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[:-1], r"Given returned float32 \[9\]; expected float32 \[10\]"),
        (lambda a: a[:, None], r"float32 \[10, 1\]"),
        (lambda a: a.double(), r"float64 \[10\]"),
        (lambda a: a.nan_to_num(math.nan) * math.nan, "not finite"),
    ],
)
def test_bad_advantages_name_the_estimator(change: Callable[[Tensor], Tensor], message: str) -> None:
    batch = make_batch([4, 6])
    with pytest.raises(RunError, match=message):
        prepare(
            batch,
            Given(change(batch.per_token["given"])),
            normalizer="per_token",
            constant=1,
            minibatches=1,
        )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda a: None, "None"),
        (lambda a: a.tolist(), "a list"),
        (lambda a: (a, a), "a tuple"),
        (lambda a: a.numpy(), "a ndarray"),
        (lambda a: AdvantageOutput(advantages=a, returns=a.tolist()), "a list"),
    ],
)
@pytest.mark.parametrize("teacher", [False, True])
def test_an_estimator_that_returns_no_tensor_is_told(
    change: Callable[[Tensor], Any], found: str, teacher: bool
) -> None:
    batch = make_batch([4, 6])
    estimator: AdvantageEstimator = Given(change(batch.per_token["given"]))
    vars(estimator)["_rlcore_name"] = "mine"  # as of one that was built
    told = f"The advantage estimator 'mine' returned {found}; expected a tensor of float32 [10], one value"
    with pytest.raises(PluginError, match=re.escape(told)):
        prepare(
            batch,
            WithTeacher(estimator, 0.5) if teacher else estimator,
            normalizer="per_token",
            constant=1,
            minibatches=1,
        )


def test_log_probs_of_the_engine_must_be_finite() -> None:
    batch = make_batch([4, 6])
    batch = batch.with_columns(per_token={"rollout_log_probs": torch.full((10,), -math.inf)})
    with pytest.raises(NotFiniteError, match="engine"):
        prepared(batch)


def test_bad_losses_are_named() -> None:
    batch = prepared(make_batch([4, 6]))
    outputs = TokenOutputs(log_probs=torch.zeros(10))

    def scalar(inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=inputs.log_probs.sum())

    def taken(inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=inputs.log_probs, metrics={"ppo_kl": inputs.log_probs})

    def short(inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=inputs.log_probs, metrics={"mine": inputs.log_probs[:1]})

    for loss, message in [(scalar, r"float32 \[\]"), (taken, "'ppo_kl', which is core's"), (short, "'mine'")]:
        with pytest.raises(RunError, match=message):
            Objective(loss)(outputs, batch)

    def failing(inputs: LossInputs) -> LossOutput:
        raise ValueError("not mine")

    with pytest.raises(PluginError, match=r"\.failing failed: ValueError: not mine \(.*, line \d+\)\.$"):
        Objective(failing)(outputs, batch)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda x: None, "returned None; expected a LossOutput."),
        (lambda x: x, "returned a Tensor; expected a LossOutput."),
        (lambda x: LossOutput(per_token=NO_TENSOR), "returned 0.5 for the loss; expected a tensor [10], one"),
        (
            lambda x: LossOutput(per_token=x, metrics={"mine": NO_TENSOR}),
            "returned 0.5 for metric 'mine'; expected a tensor [10], one",
        ),
    ],
)
def test_a_loss_that_returns_no_tensors_is_told(returns: Callable[[Tensor], Any], message: str) -> None:
    batch, outputs = prepared(make_batch([4, 6])), TokenOutputs(log_probs=torch.zeros(10))
    with pytest.raises(PluginError, match=re.escape(message)):
        Objective(lambda inputs: returns(inputs.log_probs))(outputs, batch)
    columns = dict.fromkeys(["values", "returns", "value_weights"], torch.zeros(10))
    value_loss = ValueObjective(lambda inputs: returns(inputs.values))
    with pytest.raises(PluginError, match=re.escape(message)):
        value_loss(torch.zeros(10), batch.with_columns(per_token=columns))


def test_a_metric_is_named_once() -> None:
    batch, new = prepared(make_batch([4, 6])), torch.zeros(10)
    twice = LossOutput(per_token=new, metrics={"m": new}, weighted={"m": new})
    with pytest.raises(RunError, match="the metric 'm' twice: among `metrics` and among `weighted`"):
        Objective(lambda inputs: twice)(TokenOutputs(log_probs=new), batch)


def test_a_loss_that_would_teach_nothing_is_told() -> None:
    batch, new = prepared(make_batch([4, 6])), torch.full((10,), -1.0, requires_grad=True)

    def detached(inputs: LossInputs) -> LossOutput:
        return LossOutput(per_token=inputs.log_probs.detach())

    def canceling(inputs: LossInputs) -> LossOutput:
        signs = torch.tensor([1.0, -1.0]).repeat(5)
        return LossOutput(per_token=signs / inputs.batch.per_token["weights"])

    for loss in (detached, canceling):
        with pytest.raises(PluginError, match=rf"\.{loss.__name__} returned values without a gradient, so"):
            Objective(loss)(TokenOutputs(log_probs=new), batch)
    columns = dict.fromkeys(["values", "returns", "value_weights"], torch.ones(10))
    constant = ValueObjective(lambda inputs: LossOutput(per_token=inputs.returns))
    with pytest.raises(PluginError, match="returned values without a gradient"):
        constant(new, batch.with_columns(per_token=columns))
    # Without an advantage there may be nothing to learn from a micro-batch.
    assert Objective(lambda inputs: LossOutput(per_token=torch.zeros(10)))(TokenOutputs(log_probs=new), batch)
    entropy = TokenOutputs(log_probs=new, entropy=2 * new)
    assert Objective(detached, entropy_coef=0.1)(entropy, batch).total.requires_grad


class Returns:
    """A correction that returns what it was given."""

    def __init__(self, weights: Tensor, **metrics: Tensor) -> None:
        self.output = TokenWeights(weights=weights, metrics=metrics)

    def weigh(self, inputs: CorrectionInputs) -> TokenWeights:
        assert not inputs.log_probs.requires_grad
        return self.output


def test_what_a_correction_returns_is_checked() -> None:
    batch = prepared(make_batch([4, 6]))
    outputs = TokenOutputs(log_probs=torch.zeros(10))
    one = torch.ones(10)
    for corrections, message in [
        ([Returns(one[:1])], r"Returns returned float32 \[1\] for the weights; expected \[10\]"),
        ([Returns(one, mine=one[:2])], "for metric 'mine'"),
        ([Returns(one, ppo_kl=one)], "'ppo_kl', which is core's own"),
        ([Returns(one, ratio_mean=one)], "'ratio_mean', which another part of the run returns too"),
        ([Returns(one, mine=one), Returns(one, mine=one)], "'mine', which another part of the run returns"),
    ]:
        with pytest.raises(RunError, match=message):
            Objective(clipped, corrections=corrections)(outputs, batch)
    bare: Any = Returns(one)
    bare.output = one
    with pytest.raises(PluginError, match="Returns returned a Tensor; expected TokenWeights"):
        Objective(clipped, corrections=[bare])(outputs, batch)


def test_weights_carry_no_gradient_and_their_metrics_are_summed() -> None:
    batch = prepared(make_batch([3, 2]))
    new = (torch.randn(5, dtype=torch.float64) - 2).requires_grad_()
    weights = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
    plain = Objective(clipped)(TokenOutputs(log_probs=new), batch)
    halved = Objective(clipped, corrections=[Returns(weights, w=weights.detach())])(
        TokenOutputs(log_probs=new), batch
    )
    torch.testing.assert_close(halved.total, plain.total / 2)
    found = torch.autograd.grad(halved.total, [new, weights], allow_unused=True)
    torch.testing.assert_close(found[0], torch.autograd.grad(plain.total, new)[0] / 2)
    assert found[1] is None
    assert halved.metrics["w"] == 0.5 * plain.metrics["tokens"]


def test_advantage_metrics() -> None:
    batch = replace(
        make_batch([3]),
        per_token={"loss_mask": torch.tensor([1.0, 1, 0]), "advantages": torch.tensor([1.0, 3, 50])},
    )
    assert advantage_metrics(batch) == {"advantage_mean": 2.0, "advantage_std": 1.0}
