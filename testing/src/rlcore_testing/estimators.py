"""What every advantage estimator must fulfill, as a suite to subclass.

    class TestMyEstimator(EstimatorConformance):
        scope = "group"

        def estimator(self) -> AdvantageEstimator:
            return MyEstimator(MyConfig())

Batches are random: groups of three samples, of two and of one, interleaved; a sample of a single token, one
without a token, one that is masked as a whole; a third of all tokens masked, with NaN behind the mask.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self
from unittest import SkipTest

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.training import AdvantageEstimator
from rlcore.learning.advantages import prepare
from rlcore_testing.columns import with_needed
from rlcore_testing.conformance import Conformance, Subject
from rlcore_testing.tensors import NAN, responses

LENGTHS = (3, 5, 0, 2, 1, 4, 2, 3)
GROUPS = (1, 0, 1, 2, 0, 1, 4, 4)
MASKED_SAMPLE = 3
SEEDS = range(3)


class EstimatorConformance(Conformance):
    """Subclass it as `Test…` and give `estimator` or `part`."""

    scope: ClassVar[Literal["sample", "group", "batch"]] = "batch"
    """What the advantage of a token may depend on: its sample, the samples of its group, or all."""

    shift_invariant: ClassVar[bool] = False
    """Adding a constant to every reward changes nothing, and equal rewards have no advantage."""

    idle: ClassVar[bool | None] = False
    """Every advantage is 0: the recipe trains on something else than rewards. None: they may be."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """What its advantages depend on, the config does not say: the widest scope is taken."""
        config: Any = subject.part.config if subject.part else None
        small = max(map(GROUPS.count, GROUPS)) < config.needed_group_size()
        return cls.with_values(part=subject.part, idle=None if small else config.idle)

    def estimator(self) -> AdvantageEstimator:
        """A new instance."""
        made: AdvantageEstimator = self.part.build()
        return made

    def columns(self, batch: TrainBatch) -> TrainBatch:
        """`batch` with the columns that the estimator `needs`. What they hold behind the mask may be NaN."""
        return with_needed(batch, self.part.config) if hasattr(self, "part") else batch

    # --- the properties --------------------------------------------------------------------------------

    def test_it_gives_a_finite_number_for_each_live_token(self) -> None:
        """float32 [R], as core checks; every value that is masked may be NaN."""
        for seed in SEEDS:
            is_live = bool(self._estimate(self._batch(seed)).any())
            said = "a token has an advantage" if is_live else "no token has an advantage"
            assert self.idle is None or is_live != self.idle, said

    def test_what_is_masked_does_not_matter(self) -> None:
        """Other values of the columns in masked tokens change no advantage."""
        for seed in SEEDS:
            batch = self._batch(seed)
            mask_R = batch.per_token["loss_mask"]
            filled = {name: torch.where(mask_R > 0, x_R, 5.0) for name, x_R in batch.per_token.items()}
            other = batch.with_columns({**filled, "loss_mask": mask_R})
            assert torch.equal(self._estimate(other), self._estimate(batch))

    def test_masked_tokens_are_as_if_cut_out(self) -> None:
        """Padding or a tool's tokens take no time and have no weight."""
        for seed in SEEDS:
            batch = self._batch(seed)
            live_R = batch.per_token["loss_mask"] > 0
            lengths_B = torch.zeros(len(batch), dtype=torch.int64).index_add(0, batch.segments, live_R.long())
            columns = {name: column[live_R] for name, column in batch.per_token.items()}
            short = replace(responses(lengths_B.tolist()), per_token=columns, per_sample=batch.per_sample)
            _same(self._estimate(short), self._estimate(batch)[live_R])

    def test_the_order_of_the_samples_does_not_matter(self) -> None:
        for seed in SEEDS:
            batch = self._batch(seed)
            order = torch.randperm(len(batch), generator=_draw(seed)).tolist()
            _same(self._estimate(batch.select(order)), self._shown(batch).select(order).per_token["shown"])

    def test_other_ids_of_groups_change_nothing(self) -> None:
        """Groups and rollouts of any ids: those of a batch need not be dense, nor in order."""
        batch = self._batch(0)
        renamed = {name: 97 - 7 * batch.per_sample[name] for name in ("group", "rollout")}
        _same(self._estimate(batch.with_columns(per_sample=renamed)), self._estimate(batch))

    def test_samples_outside_its_scope_change_nothing(self) -> None:
        """A group (or a sample) alone has the advantages that it has among others."""
        if self.scope == "batch":
            raise SkipTest("it may depend on the whole batch")
        batch = self._batch(0)
        shown = self._shown(batch)
        ids_B = batch.per_sample["group"] if self.scope == "group" else torch.arange(len(batch))
        for number in ids_B.unique().tolist():
            rows = torch.nonzero(ids_B == number).flatten().tolist()
            _same(self._estimate(batch.select(rows)), shown.select(rows).per_token["shown"])

    def test_a_shift_of_all_rewards_does_not_matter(self) -> None:
        if not self.shift_invariant:
            raise SkipTest("it may change")
        rewards_B = torch.rand(len(LENGTHS), generator=_draw(0))
        low, high = (self._batch(0, rewards_B + shift) for shift in (0, 2))
        torch.testing.assert_close(self._estimate(high), self._estimate(low), atol=1e-5, rtol=1e-4)
        equal = self._estimate(self._batch(0, torch.full_like(rewards_B, 0.1)))
        assert not equal.any() or equal.abs().max() < 1e-6, f"equal rewards: {equal.tolist()}"

    def test_a_group_of_one_gets_finite_numbers(self) -> None:
        """A group of one that is the batch: finite."""
        for row in range(len(LENGTHS)):
            self._estimate(self._batch(0).select([row]))

    # --- how they are computed -------------------------------------------------------------------------

    def _batch(self, seed: int, rewards_B: Tensor | None = None) -> TrainBatch:
        """Core's input: the reward of a sample (by default from 0 to 1) sits on its last live token."""
        draw, total, batch = _draw(seed), sum(LENGTHS), responses(LENGTHS)
        mask_R = (torch.rand(total, generator=draw) > 0.33) & (batch.segments != MASKED_SAMPLE)
        mask_R[:2] = True  # never a batch without anything to learn
        reward_B = torch.rand(len(LENGTHS), generator=draw) if rewards_B is None else rewards_B
        reward_R = torch.where(mask_R, 0.0, NAN)
        for sample in range(len(LENGTHS)):
            live = torch.nonzero(mask_R & (batch.segments == sample)).flatten()
            reward_R[live[-1:]] = reward_B[sample]
        return self.columns(
            batch.with_columns(
                per_token={
                    "loss_mask": mask_R.float(),
                    "rewards": reward_R,
                    "rollout_log_probs": torch.where(mask_R, -1.0, NAN),
                },
                per_sample={
                    "position": torch.arange(len(LENGTHS)),
                    "group": torch.tensor(GROUPS),
                    "rollout": torch.arange(len(LENGTHS)),
                    "reward": reward_B,
                },
            )
        )

    def _estimate(self, batch: TrainBatch) -> Tensor:
        """The advantages, checked by core; 0 where not live."""
        prepared = prepare(batch, self.estimator(), normalizer="per_token", constant=1, minibatches=1)
        return prepared.per_token["advantages"]

    def _shown(self, batch: TrainBatch) -> TrainBatch:
        return batch.with_columns({"shown": self._estimate(batch)})


def _draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same(advantages: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(advantages, expected, atol=1e-6, rtol=1e-5)
