"""Several ranks of a trainer compute, publish and save what one rank does: gloo, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rlcore.api.ability import Ability
from rlcore.api.errors import ConfigError
from rlcore.api.part_config import TrainerConfig
from rlcore_testing import trainer_layout_ranks
from rlcore_testing.tiny import make_qwen3
from rlcore_testing.trainer_base import LOG_PROBS, SUMS, OfTrainer, equal
from rlcore_testing.trainer_layout_ranks import RankReport, batches
from rlcore_testing.trainer_ranks import apart, largest

RANKS = 2
WEIGHTS = 3e-4
"""Largest difference of a weight after two steps of 1e-2: sums are taken in another order."""


@dataclass(frozen=True, kw_only=True)
class LaidOut:
    """What the ranks of each layout report, beside `alone`; and the folder that each layout saved."""

    model: Path
    alone: RankReport
    layouts: Mapping[str, tuple[Mapping[str, Any], list[RankReport]]]
    folders: Mapping[str, str]


class LayoutsConformance(OfTrainer):
    """Layouts of two ranks: data-parallel ones, and two that hold one model together."""

    layouts: ClassVar[Mapping[str, Mapping[str, Any]] | None] = None
    """Name → fields of the trainer's table. None: no field, which makes data-parallel ranks; and each of its
    `layout_fields` that makes two ranks hold one model, with the value 2."""

    @pytest.fixture(scope="class")
    @classmethod
    def laid_out(cls, tmp_path_factory: pytest.TempPathFactory) -> LaidOut:
        """Each layout takes the steps of one rank. Skips where the trainer has one rank only."""
        suite, root = cls(), tmp_path_factory.mktemp("layouts")
        model = make_qwen3(root / "model")
        layouts = suite._offered(model)
        has_critic = Ability.VALUES in suite.config.abilities
        folders = {name: str(root / f"saved{number}") for number, name in enumerate(layouts)}
        together = trainer_layout_ranks.together
        [alone] = suite.asked_of(1, together, model, {}, str(root / "alone"), has_critic)
        reports = {
            name: (given, suite.asked_of(RANKS, together, model, given, folders[name], has_critic))
            for name, given in layouts.items()
        }
        return LaidOut(model=model, alone=alone, layouts=reports, folders=folders)

    def _offered(self, model: Path) -> Mapping[str, Mapping[str, Any]]:
        """The layouts that the trainer takes."""
        self.needs(Ability.RANKS)
        if torch.cuda.is_available():
            pytest.skip("asked of ranks on the CPU: set CUDA_VISIBLE_DEVICES to nothing")
        if self.layouts is not None:
            return self.layouts
        config = self.config
        names = sorted(config.layout_fields)
        together = {f"{name}=2": {name: "2"} for name in names if _holds_one_model(config, name)}
        return {"data-parallel ranks": {}} | {
            name: given for name, given in together.items() if not self.refusal(RANKS, given, model)
        }

    def test_two_ranks_compute_what_one_does(self, laid_out: LaidOut) -> None:
        """Each on its share of a batch, which may be empty."""
        for name, (_, ranks) in laid_out.layouts.items():
            for report in ranks:
                _same_columns(name, report, laid_out.alone)
                _same_steps(f"{name}: step", report.steps, ranks[0].steps, laid_out.alone.steps)
                _same_steps(f"{name}: step of the critic", report.fits, ranks[0].fits, laid_out.alone.fits)

    def test_each_rank_says_which_share_is_its_own(self, laid_out: LaidOut) -> None:
        """Ranks that hold one model together have one share."""
        for name, (given, ranks) in laid_out.layouts.items():
            holders = self.config.model_ranks(given)
            shares = list(range(RANKS // holders))
            numbers = sorted(report.share for report in ranks)
            assert numbers == sorted(shares * holders), f"{name}: the numbers of the shares are {numbers}"
            for report in ranks:
                members = sorted(report.numbers)
                assert members == shares, (
                    f"{name}: in `DataRank.group` are the shares {members}, not {shares}"
                )

    def test_two_ranks_publish_what_one_does_in_one_order(self, laid_out: LaidOut) -> None:
        """Every rank gives every tensor, whole."""
        for name, (_, ranks) in laid_out.layouts.items():
            first, *others = ranks
            assert sorted(first.order) == sorted(laid_out.alone.order), f"{name}: names of other weights"
            for report in others:
                assert report.order == first.order, f"{name}: the order is the same on every rank"
                equal(report.weights, first.weights)
            moved = largest(dict(first.weights), dict(laid_out.alone.weights))
            assert moved < WEIGHTS, f"{name}: weights are {moved} from those of one rank"

    def test_two_ranks_save_what_one_does(self, laid_out: LaidOut, tmp_path: Path) -> None:
        """Checks the directory that the driver makes of it."""
        saved = {name: (given, laid_out.folders[name]) for name, (given, _) in laid_out.layouts.items()}
        call = (saved, laid_out.alone.weights, str(tmp_path))
        moved = self.asked(trainer_layout_ranks.saved_by, laid_out.model, *call)
        far = {name: gap for name, gap in moved.items() if not gap < WEIGHTS}
        assert not far, f"saved weights are so far from those of one rank: {far}"

    def test_two_ranks_resume_to_the_last_bit(self, laid_out: LaidOut) -> None:
        """In new processes, under the layout that saved."""
        for name, (given, ranks) in laid_out.layouts.items():
            resumed = trainer_layout_ranks.resumed_together
            resumptions = self.asked_of(RANKS, resumed, laid_out.model, given, laid_out.folders[name])
            for number, ((step, after), report) in enumerate(zip(resumptions, ranks, strict=True)):
                where = f"{name}, rank {number}"
                assert step == report.last, f"{where}: another loss, norm or learning rate of the next step"
                for key, tensor in report.after.items():
                    assert torch.equal(after[key], tensor), f"{where}: {key} differs"


def _holds_one_model(config: TrainerConfig, name: str) -> bool:
    """Whether two ranks hold one model where this field is 2."""
    try:
        return config.model_ranks({name: "2"}) == RANKS
    except ConfigError:
        return False


def _same_columns(name: str, report: RankReport, alone: RankReport) -> None:
    """Log-probs, entropy and values of the rows that a rank has."""
    for batch, mine, columns, wanted in zip(
        batches(), report.rows, report.columns, alone.columns, strict=True
    ):
        places = torch.arange(int(batch.response_lengths.sum())).split(batch.response_lengths.tolist())
        rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(places[row] for row in mine)])
        for column, values in columns.items():
            gap = apart(values, wanted[column][rows]) if len(rows) else 0.0
            assert gap < LOG_PROBS, (
                f"{name}, rank of share {report.share}: {column} are {gap} from one rank's"
            )


def _same_steps(name: str, steps: Any, first: Any, alone: Any) -> None:
    for number, (step, other, lone) in enumerate(zip(steps, first, alone, strict=True), 1):
        assert step == other, f"{name} {number}: the ranks say different things, {step} and {other}"
        said = {"loss": step.loss, "norm": step.grad_norm, "learning rate": step.lr, **step.metrics}
        wanted = {"loss": lone.loss, "norm": lone.grad_norm, "learning rate": lone.lr, **lone.metrics}
        for what, value in wanted.items():
            close = said[what] == pytest.approx(value, rel=10 * SUMS, abs=1e-6)
            assert close, f"{name} {number}: {what} is {said[what]}, on one rank {value}"
