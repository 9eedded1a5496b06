"""What every loss must fulfill, as a suite to subclass: core relies on it, and so does whoever trains.

    class TestMyLoss(LossConformance):
        def loss(self) -> Loss:
            return MyLoss(MyLossConfig(clip_low=0.2, clip_high=0.2))

Everything is computed by core's own `Objective`, in float64, on random batches of uneven samples: one of
a single token, one without a token, one that is masked as a whole, one split in two; a third of all tokens is
masked.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.trainer import TokenOutputs
from rlcore.api.training import Loss, LossInputs
from rlcore.learning.objective import WEIGHTED, Objective
from rlcore.learning.preparation import prepare, with_batch_columns
from rlcore.testing.tensors import INF, NAN, f64, loss_inputs, responses

LENGTHS = (3, 0, 5, 2, 1, 4)
ROLLOUTS = (0, 1, 2, 3, 4, 2)
MASKED_SAMPLE = 3
DEAD = {1, MASKED_SAMPLE}
"""The samples without a live token."""
SEEDS = range(3)


@dataclass(frozen=True)
class LossResults:
    """Of a whole batch: the loss, its gradient in (log-probs, entropies), [R, 2], and sums of the metrics."""

    total: Tensor
    gradient: Tensor
    metrics: dict[str, float]


class LossConformance(ABC):
    """Subclass it as `Test…` and give `loss`. The clips of the loss should act at log-ratios up to 0.6."""

    policy_gradient: ClassVar[bool] = True
    """On policy (new and old log-probs are equal) the gradient in a token's log-prob is -A."""

    ratio: ClassVar[bool] = True
    """It compares new with old log-probs, so that it must bound their ratio."""

    units: ClassVar[Sequence[Sequence[int]]] = tuple((row,) for row in range(len(LENGTHS)))
    """The samples that no split takes apart, as the two responses of a pair; `columns` adds `unit`."""

    @abstractmethod
    def loss(self) -> Loss:
        """A new instance."""

    def columns(self, batch: TrainBatch) -> TrainBatch:
        """`batch` with the further columns that the loss reads. What they hold behind the mask may be NaN."""
        return batch

    def top_log_probs(self, new_R: Tensor) -> Tensor | None:
        """Where the loss asks for `top_tokens`: the policy's log-probs of them, [R, K], made of `new_R`."""
        return None

    def gradient(self, inputs: LossInputs) -> Tensor | None:
        """Where the gradient is not that of the value (a part is detached): the paper's, [R].

        d(Σ per_token) / d log_probs. None: autograd is compared with finite differences of the value.
        """
        return None

    # --- the properties --------------------------------------------------------------------------------

    def test_the_split_into_micro_batches_does_not_matter(self) -> None:
        for seed in SEEDS:
            batch = self._batch(seed)
            one = self._run(batch)
            for bins in _splits(self.units):
                _same(self._run(batch, bins), one)

    def test_the_order_of_the_samples_does_not_matter(self) -> None:
        for seed in SEEDS:
            batch = self._batch(seed)
            order = torch.randperm(len(batch), generator=_draw(seed)).tolist()
            _same(self._run(batch, [order]), self._run(batch))

    def test_masked_tokens_are_as_if_cut_out(self) -> None:
        """Padding, a tool's tokens, a sample that is masked as a whole: the loss knows nothing of them."""
        for seed in SEEDS:
            batch = self._batch(seed)
            live = batch.per_token["loss_mask"] > 0
            found, expected = self._run(batch), self._run(_compressed(batch))
            _same(replace(found, gradient=found.gradient[live]), expected)

    def test_nan_behind_the_mask_stays_there(self) -> None:
        """Bit by bit the same as with any number there, and exactly no gradient."""
        for seed in SEEDS:
            batch = self._batch(seed)
            mask_R = batch.per_token["loss_mask"]
            filled = {
                name: _where_live(column, mask_R, 5.0) if column.is_floating_point() else column
                for name, column in batch.per_token.items()
            }
            found = self._run(batch)
            expected = self._run(batch.with_columns({**filled, "loss_mask": mask_R}))
            assert found.total.isfinite(), f"the loss is {found.total}"
            assert torch.equal(found.total, expected.total), "what is masked changes the loss"
            assert torch.equal(found.gradient, expected.gradient), "what is masked changes the gradient"
            assert not found.gradient[mask_R == 0].any(), "a masked token has a gradient"
            assert found.gradient[mask_R > 0].any(), "no token has a gradient"
            assert found.metrics == expected.metrics, "what is masked changes the metrics"
            assert all(map(math.isfinite, found.metrics.values())), f"not finite: {found.metrics}"

    def test_nothing_live_gives_nothing(self) -> None:
        """A micro-batch without a token, or with masked ones only: 0, and no gradient."""
        batch = self._batch(0)
        dead = [list(unit) for unit in self.units if DEAD.issuperset(unit)]
        for rows in [*dead, list(chain.from_iterable(dead))]:
            found = self._run(batch.select(rows), [list(range(len(rows)))])
            assert found.total == 0
            assert not found.gradient.any()

    def test_the_gradient_is_right(self) -> None:
        """Against finite differences of the value, or against `gradient`."""
        for seed in SEEDS:
            batch = _compressed(self._batch(seed))
            inputs = self._inputs(batch)
            expected = self.gradient(inputs)
            if expected is None:
                new_R = batch.per_token["new_log_probs"].clone().requires_grad_()
                assert torch.autograd.gradcheck(lambda new, b=batch: self._total(b, new), (new_R,))
                continue
            weighted = batch.per_token["weights"] * expected
            torch.testing.assert_close(self._run(batch).gradient[:, 0], weighted, atol=1e-12, rtol=1e-9)

    def test_on_policy_it_is_the_policy_gradient(self) -> None:
        if not self.policy_gradient:
            return
        batch = _compressed(self._batch(0))
        batch = batch.with_columns({"old_log_probs": batch.per_token["new_log_probs"]})
        expected = -batch.per_token["weights"] * batch.per_token["advantages"].double()
        torch.testing.assert_close(self._run(batch).gradient[:, 0], expected, atol=1e-12, rtol=1e-9)

    def test_extreme_log_ratios_are_finite(self) -> None:
        """±1000, and ±inf where the advantage is 0."""
        if not self.ratio:
            return
        new = f64(1000, -1000, 1000, -1000, INF, -INF).requires_grad_()
        inputs = self._with_columns(loss_inputs(new, f64(*[0] * 6), f64(1, 1, -1, -1, 0, 0), lengths=[1] * 6))
        output = self.loss()(inputs)
        assert output.per_token.isfinite().all(), f"not finite: {output.per_token.tolist()}"
        (gradient,) = torch.autograd.grad(output.per_token.sum(), new)
        assert gradient.isfinite().all(), f"gradient not finite: {gradient.tolist()}"

    def test_nan_of_a_live_token_is_not_hidden(self) -> None:
        """It must reach the loss, for there it stops the run."""
        batch = _compressed(self._batch(0))
        for advantage in (1.0, -1.0, 0.0):
            changed = {name: batch.per_token[name].clone() for name in ("new_log_probs", "advantages")}
            changed["new_log_probs"][0], changed["advantages"][0] = NAN, advantage
            assert self._run(batch.with_columns(changed)).total.isnan(), f"hidden where A = {advantage}"

    def test_it_is_a_pure_function(self) -> None:
        """A second call finds the same, and no input has changed."""
        inputs, untouched = (self._inputs(_compressed(self._batch(0))) for _ in range(2))
        loss = self.loss()
        first, second = loss(inputs), loss(inputs)
        assert torch.equal(first.per_token, second.per_token)
        for name in ("log_probs", "old_log_probs", "rollout_log_probs", "advantages", "mask"):
            assert torch.equal(getattr(inputs, name), getattr(untouched, name)), f"it changed {name}"

    # --- how they are computed -------------------------------------------------------------------------

    def _batch(self, seed: int) -> TrainBatch:
        """Prepared; NaN behind the mask. `new_log_probs` are the policy's; log-ratios lie within ±0.6."""
        draw, total = _draw(seed), sum(LENGTHS)
        batch = responses(LENGTHS)
        live_R = (torch.rand(total, generator=draw) > 0.33) & (batch.segments != MASKED_SAMPLE)
        live_R[-1] = True

        def column(low: float, high: float) -> Tensor:
            values = low + (high - low) * torch.rand(total, generator=draw, dtype=torch.float64)
            return torch.where(live_R, values, NAN)

        old_R = column(-3, -0.7)
        batch = batch.with_columns(
            per_token={
                "loss_mask": live_R.float(),
                "old_log_probs": old_R,
                "rollout_log_probs": old_R + column(-0.1, 0.1),
                "new_log_probs": old_R + column(-0.6, 0.6),
                "entropy": column(0, 2),
                "given": column(-2, 2).float(),
            },
            per_sample={
                "position": torch.arange(len(LENGTHS)),
                "group": torch.tensor([0, 0, 0, 1, 1, 0]),
                "rollout": torch.tensor(ROLLOUTS),
                "reward": torch.rand(len(LENGTHS), generator=draw),
            },
        )
        prepared = prepare(batch, _Given(), normalizer="per_rollout", constant=7, minibatches=1)
        return with_batch_columns(self.columns(prepared), [self.loss()])

    def _run(self, batch: TrainBatch, bins: Sequence[Sequence[int]] | None = None) -> LossResults:
        """Summed over the micro-batches `bins` (default: one)."""
        leaves = [batch.per_token[name].clone().requires_grad_() for name in ("new_log_probs", "entropy")]
        objective, whole = Objective(self.loss()), batch.with_columns({"slot": torch.arange(len(leaves[0]))})
        total, sums = f64(0).sum(), dict[str, float]()
        for rows in bins or [range(len(batch))]:
            part = whole.select(rows)
            new_R, entropy_R = (leaf[part.per_token["slot"]] for leaf in leaves)
            chosen_RK = self._chosen(new_R, part.per_token["loss_mask"])
            result = objective(TokenOutputs(log_probs=new_R, entropy=entropy_R, chosen=chosen_RK), part)
            total = total + result.total
            for name, value in result.metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        slopes = torch.autograd.grad(total, leaves, materialize_grads=True)
        return LossResults(total.detach(), torch.stack(slopes, 1), sums)

    def _total(self, batch: TrainBatch, new_R: Tensor) -> Tensor:
        chosen_RK = self._chosen(new_R, batch.per_token["loss_mask"])
        outputs = TokenOutputs(log_probs=new_R, entropy=batch.per_token["entropy"], chosen=chosen_RK)
        return Objective(self.loss())(outputs, batch).total

    def _chosen(self, new_R: Tensor, mask_R: Tensor) -> Tensor | None:
        """`top_log_probs`, NaN behind the mask, where they have no gradient."""
        chosen_RK = self.top_log_probs(torch.where(mask_R > 0, new_R, -1.0))
        return None if chosen_RK is None else _where_live(chosen_RK, mask_R, NAN)

    def _inputs(self, batch: TrainBatch) -> LossInputs:
        """What the loss sees of a batch without a masked token."""
        columns = batch.per_token
        inputs = loss_inputs(
            columns["new_log_probs"],
            columns["old_log_probs"],
            columns["advantages"].double(),
            lengths=batch.response_lengths.tolist(),
        )
        return replace(
            inputs,
            rollout_log_probs=columns["rollout_log_probs"],
            entropy=columns["entropy"],
            batch=batch,
            top_log_probs=self._chosen(columns["new_log_probs"], columns["loss_mask"]),
        )

    def _with_columns(self, inputs: LossInputs) -> LossInputs:
        columns = {
            "loss_mask": inputs.mask,
            "old_log_probs": inputs.old_log_probs,
            "advantages": inputs.advantages,
        }
        batch = self.columns(inputs.batch.with_columns(per_token=columns))
        return replace(inputs, batch=with_batch_columns(batch, [self.loss()]))


class _Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["given"]


def _compressed(batch: TrainBatch) -> TrainBatch:
    """`batch` without its masked tokens; the weights are those of the whole."""
    live_R = batch.per_token["loss_mask"] > 0
    lengths_B = torch.zeros(len(batch), dtype=torch.int64).index_add(0, batch.segments, live_R.long())
    columns = {name: column[live_R] for name, column in batch.per_token.items()}
    return replace(responses(lengths_B.tolist()), per_token=columns, per_sample=batch.per_sample)


def _where_live(column: Tensor, mask_R: Tensor, other: float) -> Tensor:
    """`column`, [R] or [R, K], with `other` behind the mask."""
    live = mask_R > 0 if column.dim() == 1 else mask_R[:, None] > 0
    return torch.where(live, column, other)


def _splits(units: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Bins of rows: each unit by itself, every other one, and all but the first, last to first."""
    every_other, rest = [units[0::2], units[1::2]], [units[:0:-1], units[:1]]
    halves = [[list(chain.from_iterable(bin)) for bin in bins] for bins in (every_other, rest)]
    return [[list(unit) for unit in units], *halves]


def _draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same(found: LossResults, expected: LossResults) -> None:
    torch.testing.assert_close(found.total, expected.total, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(found.gradient, expected.gradient, atol=1e-12, rtol=1e-9)
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in found.metrics.items():
        exact = 1e-6 if name.startswith(WEIGHTED) else 1e-9  # the weights are fp32
        assert math.isclose(value, expected.metrics[name], rel_tol=exact, abs_tol=exact), name
