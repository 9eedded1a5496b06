"""What every part that works on a micro-batch must fulfill: losses, corrections, losses of a critic.

Everything is computed by core's own objectives, in float64, on random batches of uneven samples: one of
a single token, one without a token, one that is masked as a whole, one split in two; a third of all tokens is
masked, with NaN behind the mask.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.columns import TrainsOn
from rlcore.api.part_config import BatchConfig, LossConfig
from rlcore.api.trainer import LossResult, TokenOutputs
from rlcore.learning.advantages import prepare, with_batch_columns
from rlcore.learning.metrics import WEIGHTED
from rlcore_testing.columns import top_log_probs, with_needed, with_pairs
from rlcore_testing.conformance import Conformance
from rlcore_testing.tensors import NAN, f64, responses

LENGTHS = (3, 0, 5, 2, 1, 4)
ROLLOUTS = (0, 1, 2, 3, 4, 2)
MASKED_SAMPLE = 3
DEAD = {1, MASKED_SAMPLE}
"""The samples without a live token."""
SEEDS = range(3)


@dataclass(frozen=True)
class LossResults:
    """Results of a batch: the loss, its gradient in each leaf, [R, leaves], and sums of the metrics."""

    total: Tensor
    gradient: Tensor
    metrics: dict[str, float]


class BatchConformance(Conformance):
    """The properties that do not depend on the kind."""

    leaves: ClassVar[tuple[str, ...]] = ("new_log_probs", "entropy")
    """The columns that stand for what the model computes, and carry the gradient."""

    units: ClassVar[Sequence[Sequence[int]]] = tuple((row,) for row in range(len(LENGTHS)))
    """The samples that no split takes apart, as the two responses of a pair; `columns` adds `unit`."""

    def parts(self) -> Sequence[object]:
        """What is checked, whose columns of the whole batch (`rlcore.BatchColumns`) it needs."""
        raise NotImplementedError

    def evaluate(self, leaves: Mapping[str, Tensor], batch: TrainBatch) -> LossResult:
        """What core's objective makes of a micro-batch."""
        raise NotImplementedError

    def columns(self, batch: TrainBatch) -> TrainBatch:
        """`batch` with the further columns that the part reads. What they hold behind the mask may be NaN.

        By default those that the config of `part` needs.
        """
        config = self._config
        if config is None:
            return batch
        return with_needed(with_pairs(batch) if self._is_of_pairs else batch, config)

    def top_log_probs(self, new_R: Tensor) -> Tensor | None:
        """Where the loss asks for `top_tokens`: the policy's log-probs of them, [R, K], made of `new_R`."""
        top = self._config.top_tokens if isinstance(self._config, LossConfig) else None
        return None if top is None else top_log_probs(new_R, top.count)

    @property
    def _config(self) -> BatchConfig | None:
        """The config of `part`, where the suite has one."""
        return self.part.config if hasattr(self, "part") else None

    @property
    def _is_of_pairs(self) -> bool:
        return self._config is not None and self._config.trains_on == {TrainsOn.PAIRS}

    def test_the_split_into_micro_batches_does_not_matter(self) -> None:
        for seed in SEEDS:
            batch = self._batch(seed)
            whole = self._run(batch)
            for bins in _splits(self.units):
                assert_same(self._run(batch, bins), whole)

    def test_the_order_of_the_samples_does_not_matter(self) -> None:
        for seed in SEEDS:
            batch = self._batch(seed)
            order = torch.randperm(len(batch), generator=seeded(seed)).tolist()
            assert_same(self._run(batch, [order]), self._run(batch))

    def test_masked_tokens_are_as_if_cut_out(self) -> None:
        """Padding, a tool's tokens, a sample that is masked as a whole: the loss knows nothing of them."""
        for seed in SEEDS:
            batch = self._batch(seed)
            live = batch.per_token["loss_mask"] > 0
            results, expected = self._run(batch), self._run(compressed(batch))
            assert_same(replace(results, gradient=results.gradient[live]), expected)

    def test_nan_in_masked_tokens_changes_nothing(self) -> None:
        """Bit by bit the same as with any number there, and exactly no gradient."""
        for seed in SEEDS:
            batch = self._batch(seed)
            mask_R = batch.per_token["loss_mask"]
            filled = {
                name: where_live_or(column, mask_R, 5.0) if column.is_floating_point() else column
                for name, column in batch.per_token.items()
            }
            results = self._run(batch)
            expected = self._run(batch.with_columns({**filled, "loss_mask": mask_R}))
            assert results.total.isfinite(), f"the loss is {results.total}"
            assert torch.equal(results.total, expected.total), "what is masked changes the loss"
            assert torch.equal(results.gradient, expected.gradient), "what is masked changes the gradient"
            assert not results.gradient[mask_R == 0].any(), "a masked token has a gradient"
            assert results.gradient[mask_R > 0].any(), "no token has a gradient"
            assert results.metrics == expected.metrics, "what is masked changes the metrics"
            assert all(map(math.isfinite, results.metrics.values())), f"not finite: {results.metrics}"

    def test_a_batch_without_live_tokens_gives_nothing(self) -> None:
        """A micro-batch without a token, or with masked ones only: 0, and no gradient."""
        batch = self._batch(0)
        dead = [list(unit) for unit in self.units if DEAD.issuperset(unit)]
        for rows in [*dead, list(chain.from_iterable(dead))]:
            results = self._run(batch.select(rows), [list(range(len(rows)))])
            assert results.total == 0
            assert not results.gradient.any()

    # --- how they are computed -------------------------------------------------------------------------

    def _batch(self, seed: int) -> TrainBatch:
        """Prepared; NaN behind the mask. `new_log_probs` are the policy's; log-ratios lie within ±0.6."""
        draw, total = seeded(seed), sum(LENGTHS)
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
        return with_batch_columns(self.columns(prepared), self.parts())

    def _run(self, batch: TrainBatch, bins: Sequence[Sequence[int]] | None = None) -> LossResults:
        """Summed over the micro-batches `bins` (default: one)."""
        leaves = {name: batch.per_token[name].clone().requires_grad_() for name in self.leaves}
        whole = batch.with_columns({"slot": torch.arange(int(batch.response_lengths.sum()))})
        total, sums = f64(0).sum(), dict[str, float]()
        for rows in bins or [range(len(batch))]:
            part = whole.select(rows)
            of_part = {name: leaf[part.per_token["slot"]] for name, leaf in leaves.items()}
            result = self.evaluate(of_part, part)
            total = total + result.total
            for name, value in result.metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        slopes = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return LossResults(total.detach(), torch.stack(slopes, 1), sums)

    def _outputs(self, leaves: Mapping[str, Tensor], batch: TrainBatch) -> TokenOutputs:
        """What the trainer gives an objective."""
        chosen_RK = self._chosen(leaves["new_log_probs"], batch.per_token["loss_mask"])
        return TokenOutputs(log_probs=leaves["new_log_probs"], entropy=leaves["entropy"], chosen=chosen_RK)

    def _chosen(self, new_R: Tensor, mask_R: Tensor) -> Tensor | None:
        """`top_log_probs`, NaN behind the mask, where they have no gradient."""
        chosen_RK = self.top_log_probs(torch.where(mask_R > 0, new_R, -1.0))
        return None if chosen_RK is None else where_live_or(chosen_RK, mask_R, NAN)


class _Given:
    """The advantages that the batch holds."""

    def estimate(self, batch: TrainBatch) -> Tensor:
        return batch.per_token["given"]


def compressed(batch: TrainBatch) -> TrainBatch:
    """`batch` without its masked tokens; the weights are those of the whole."""
    live_R = batch.per_token["loss_mask"] > 0
    lengths_B = torch.zeros(len(batch), dtype=torch.int64).index_add(0, batch.segments, live_R.long())
    columns = {name: column[live_R] for name, column in batch.per_token.items()}
    return replace(responses(lengths_B.tolist()), per_token=columns, per_sample=batch.per_sample)


def where_live_or(column: Tensor, mask_R: Tensor, other: float) -> Tensor:
    """`column`, [R] or [R, K], with `other` behind the mask."""
    live = mask_R > 0 if column.dim() == 1 else mask_R[:, None] > 0
    return torch.where(live, column, other)


def _splits(units: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Bins of rows: each unit by itself, every other one, and all but the first, last to first."""
    every_other, rest = [units[0::2], units[1::2]], [units[:0:-1], units[:1]]
    halves = [[list(chain.from_iterable(bin)) for bin in bins] for bins in (every_other, rest)]
    return [[list(unit) for unit in units], *halves]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_same(found: LossResults, expected: LossResults) -> None:
    torch.testing.assert_close(found.total, expected.total, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(found.gradient, expected.gradient, atol=1e-12, rtol=1e-9)
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in found.metrics.items():
        exact = 1e-6 if name.startswith(WEIGHTED) else 1e-9  # the weights are fp32
        assert math.isclose(value, expected.metrics[name], rel_tol=exact, abs_tol=exact), name
