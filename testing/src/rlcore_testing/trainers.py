"""The conformance suite of trainers: on one rank, in fp32, beside transformers' own model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from rlcore.api.part import Part
from rlcore.api.part_config import TrainerConfig
from rlcore_testing import trainer_checkpoints, trainer_ranks
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

    def asked(self, function: Callable[..., Any], path: Path, *more: Any) -> Any:
        """What the one rank answers."""
        name = f"{function.__module__}:{function.__name__}"
        return run_ranks(name, 1, self.trainer(), self.bridge(), str(path), *more)[0]

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A tiny random Qwen3."""
        return make_qwen3(tmp_path / "model")

    def test_log_probs_are_those_of_transformers(self, model: Path) -> None:
        answers = self.asked(trainer_ranks.log_probs, model)
        assert all(apart < LOG_PROBS for apart in answers.values()), answers

    def test_the_gradient_of_a_linear_loss_is_that_of_autograd(self, model: Path) -> None:
        """Of log-probs, entropy and given tokens."""
        answers = self.asked(trainer_ranks.gradient, model)
        assert all(apart < SUMS for apart in answers.values()), answers

    def test_a_step_does_not_depend_on_how_its_batch_is_split(self, model: Path) -> None:
        whole = self.asked(trainer_ranks.split, model, trainer_ranks.BUDGET)
        parts = self.asked(trainer_ranks.split, model, trainer_ranks.SMALL_BUDGET)
        assert float((whole[0] - parts[0]).abs().max()) < LOG_PROBS, "other log-probs"
        assert parts[1:3] == pytest.approx(whole[1:3], rel=SUMS), "another loss or gradient norm"
        assert whole[3].keys() == parts[3].keys()
        for name in whole[3]:
            assert float((whole[3][name] - parts[3][name]).abs().max()) < SUMS, name

    def test_what_follows_a_load_is_the_same_to_the_last_bit(self, model: Path, tmp_path: Path) -> None:
        """In a new process, which has nothing but what was written."""
        folder = str(tmp_path / "saved")
        wanted = self.asked(trainer_checkpoints.saved, model, folder)
        found = self.asked(trainer_checkpoints.resumed, model, folder)
        assert found[0] == wanted[0], "loss, norm and learning rate of the next step"
        equal(found[1], wanted[1])

    def test_what_cannot_be_loaded_is_refused(self, model: Path, tmp_path: Path) -> None:
        """By a CheckpointError: rlcore says what it says, and ends."""
        other = make_qwen3(tmp_path / "other", num_hidden_layers=1)
        folders = {name: str(tmp_path / name) for name in ("sound", "missing", "damaged", "of another model")}
        self.asked(trainer_checkpoints.trained, model, folders["sound"])
        self.asked(trainer_checkpoints.trained, other, folders["of another model"])
        trainer_checkpoints.damage(Path(folders["sound"]), Path(folders["damaged"]))
        said = self.asked(trainer_checkpoints.refusals, model, *folders.values())
        refused = dict.fromkeys(folders, "CheckpointError") | {"sound": "nothing"}
        found = dict(zip(folders, said, strict=True))
        assert found == refused, f"`load` raised {found}"

    def test_a_checkpoint_becomes_a_directory_that_transformers_loads(
        self, model: Path, tmp_path: Path
    ) -> None:
        folders = str(tmp_path / "saved"), str(tmp_path / "converted")
        wanted = self.asked(trainer_checkpoints.trained, model, folders[0])
        found = self.asked(trainer_checkpoints.converted, model, *folders)
        assert float((found - wanted).abs().max()) < LOG_PROBS, "its log-probs are not the policy's"

    def test_published_weights_are_the_policy_by_the_names_of_its_directory(
        self, model: Path, tmp_path: Path
    ) -> None:
        before, after, moved, gap = self.asked(trainer_checkpoints.published, model, str(tmp_path / "out"))
        with safe_open(model / "model.safetensors", "pt") as file:
            assert set(before) == set(file.keys()), "names of other weights"
        assert before == after, "the order is the same at every publication"
        assert moved > 0, "a step changed nothing"
        assert gap < LOG_PROBS, f"log-probs of what is published are {gap} from the policy's"

    def test_a_step_that_is_not_finite_is_not_taken(self, model: Path) -> None:
        """Nothing of it stays: the next step is the one of a policy that never saw it."""
        found = self.asked(trainer_ranks.not_finite, model)
        wanted = self.asked(trainer_ranks.undisturbed, model)
        assert found["finite"] == [False, False], "of a loss, and of a gradient, that is not finite"
        assert found["moved"] == 0, "it changed the weights"
        assert found["lr"] == wanted["lr"], "it counts for the schedule of the learning rate"
        equal(found["weights"], wanted["weights"])

    def test_the_learning_rate_is_scaled(self, model: Path) -> None:
        """As a callback asks for it."""
        answers = self.asked(trainer_ranks.scaled, model)
        assert answers["half"] == pytest.approx(trainer_ranks.SETTINGS.lr / 2), answers
        assert answers["none"] == answers["moved"] == 0, answers

    def test_what_a_hook_freezes_stays(self, model: Path) -> None:
        """A weight decay does not move it either."""
        frozen, moved, published = self.asked(trainer_ranks.frozen, model)
        assert frozen, "its hooks are shown no parameters"
        assert moved.pop(frozen) == 0, f"what is frozen was trained: {frozen}"
        assert all(far > 0 for far in moved.values()), moved
        assert not all(published.values()), "the engines get another weight for what is frozen"

    def test_a_reference_stays_until_it_takes_over_the_policy(self, model: Path) -> None:
        answers = self.asked(trainer_ranks.reference, model)
        assert answers["kept"] == 0, "it moved with the policy"
        assert answers["apart"] > LOG_PROBS, "the policy did not move"
        assert answers["copied"] < LOG_PROBS, "it is not the policy after `copy_weights`"

    def test_a_sleep_frees_the_device_and_changes_no_bit(self, model: Path) -> None:
        config = self.trainer().config
        if not (isinstance(config, TrainerConfig) and config.sleeps):
            pytest.skip("this trainer does not sleep")
        found, wanted = self.asked(trainer_ranks.slept, model), self.asked(trainer_ranks.awake, model)
        for kept in ("weights", "lent"):  # once awake, and while the weights alone are back for engines
            for mine, theirs in zip(found[kept], wanted, strict=True):
                equal(mine, theirs)
        assert found["moved"] == 0, "the reference came back as another"
        asleep, size = found["left"], sum(one.nbytes for one in wanted[0].values())
        assert asleep[0] > asleep[1], "with `all`, weights lie in the device's memory no more"
        # gradients and two moments, in fp32; then the weights of policy and reference too
        assert found["freed"][0] >= 3 * size, f"{found['freed'][0]} bytes are freed, of {3 * size}"
        assert found["freed"][1] >= 5 * size, f"{found['freed'][1]} bytes are freed, of {5 * size}"
