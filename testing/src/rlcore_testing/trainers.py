"""The conformance suite of trainers: on one rank, in fp32, beside transformers' own model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from rlcore.api.part import Part
from rlcore.api.part_config import TrainerConfig
from rlcore_testing import trainer_ranks
from rlcore_testing.conformance import Conformance, Subject
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import make_qwen3

LOG_PROBS = 1e-4
"""Largest difference of log-probs in fp32: what every run checks of trainer and engine."""
SUMS = 1e-4
"""Relative difference of sums over another order."""


def equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Fails at the first tensor that differs in any bit."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), f"{name} differs"


class TrainerConformance(Conformance):
    """Subclass it and say which trainer; each property is a test, in a process of its own."""

    qwen3: ClassVar[Part] = Part(name="none", factory="rlcore.api.part:Part")
    """The bridge of Qwen3 for this trainer; the default fits one that needs no bridge."""

    @classmethod
    def of(cls, subject: Subject) -> type[Self]:
        """With the bridge that a plugin offers for it."""
        return cls.with_values(part=subject.part, qwen3=subject.bridge or cls.qwen3)

    def trainer(self) -> Part:
        """The trainer, as a record names it."""
        return self.part

    def bridge(self) -> Part:
        """The bridge of Qwen3 for this trainer."""
        return self.qwen3

    def asked(self, function: str, path: Path, *more: Any) -> Any:
        """What the one rank answers."""
        name = f"{trainer_ranks.__name__}:{function}"
        return run_ranks(name, 1, self.trainer(), self.bridge(), str(path), *more)[0]

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A tiny random Qwen3."""
        return make_qwen3(tmp_path / "model")

    def test_log_probs_are_those_of_transformers(self, model: Path) -> None:
        answers = self.asked("log_probs", model)
        assert all(apart < LOG_PROBS for apart in answers.values()), answers

    def test_the_gradient_of_a_linear_loss_is_that_of_autograd(self, model: Path) -> None:
        """Of log-probs, entropy and given tokens."""
        answers = self.asked("gradient", model)
        assert all(apart < SUMS for apart in answers.values()), answers

    def test_a_step_does_not_depend_on_how_its_batch_is_split(self, model: Path) -> None:
        whole = self.asked("split", model, trainer_ranks.BUDGET)
        parts = self.asked("split", model, trainer_ranks.SMALL_BUDGET)
        assert float((whole[0] - parts[0]).abs().max()) < LOG_PROBS
        assert parts[1:3] == pytest.approx(whole[1:3], rel=SUMS)
        assert whole[3].keys() == parts[3].keys()
        for name in whole[3]:
            assert float((whole[3][name] - parts[3][name]).abs().max()) < SUMS, name

    def test_what_follows_a_load_is_the_same_to_the_last_bit(self, model: Path, tmp_path: Path) -> None:
        """In a new process, which has nothing but what was written."""
        folder = str(tmp_path / "saved")
        wanted, found = self.asked("saved", model, folder), self.asked("resumed", model, folder)
        assert found[0] == wanted[0], "loss, norm and learning rate of the next step"
        equal(found[1], wanted[1])

    def test_published_weights_are_the_policy_by_the_names_of_its_directory(
        self, model: Path, tmp_path: Path
    ) -> None:
        before, after, moved, gap = self.asked("published", model, str(tmp_path / "out"))
        with safe_open(model / "model.safetensors", "pt") as file:
            assert set(before) == set(file.keys())
        assert before == after, "the order is the same at every publication"
        assert moved > 0
        assert gap < LOG_PROBS

    def test_a_step_that_is_not_finite_is_not_taken(self, model: Path) -> None:
        """Nothing of it stays: the next step is the one of a policy that never saw it."""
        found, wanted = self.asked("not_finite", model), self.asked("undisturbed", model)
        assert found["finite"] == [False, False], "of a loss, and of a gradient, that is not finite"
        assert found["moved"] == 0, "it changed the weights"
        assert found["lr"] == wanted["lr"], "it counts for the schedule of the learning rate"
        equal(found["weights"], wanted["weights"])

    def test_a_reference_stays_until_it_takes_over_the_policy(self, model: Path) -> None:
        answers = self.asked("reference", model)
        assert answers["kept"] == 0
        assert answers["apart"] > LOG_PROBS
        assert answers["copied"] < LOG_PROBS

    def test_a_sleep_frees_the_device_and_changes_no_bit(self, model: Path) -> None:
        config = self.trainer().config
        if not (isinstance(config, TrainerConfig) and config.sleeps):
            pytest.skip("this trainer does not sleep")
        found, wanted = self.asked("slept", model), self.asked("awake", model)
        for kept in ("weights", "lent"):  # once awake, and while the weights alone are back for engines
            for mine, theirs in zip(found[kept], wanted, strict=True):
                equal(mine, theirs)
        assert found["moved"] == 0
        asleep, size = found["left"], sum(one.nbytes for one in wanted[0].values())
        assert asleep[0] > asleep[1], "with `all`, weights lie in the device's memory no more"
        # gradients and two moments, in fp32; then the weights of policy and reference too
        assert found["freed"][0] >= 3 * size
        assert found["freed"][1] >= 5 * size
