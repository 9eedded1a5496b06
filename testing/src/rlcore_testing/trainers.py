"""The conformance suite of trainers: in fp32 on the CPU, beside transformers' own model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from rlcore.api.ability import Ability
from rlcore.api.run_config import RunConfig
from rlcore.compose.abilities import missing, setting_demands
from rlcore_testing import trainer_checkpoints, trainer_ranks
from rlcore_testing.tiny import make_qwen3
from rlcore_testing.trainer_base import LOG_PROBS, SUMS, OfTrainer, equal
from rlcore_testing.trainer_layouts import LayoutsConformance
from rlcore_testing.trainer_roles import RolesConformance

ASKING: Mapping[Ability, Mapping[str, Any]] = {
    Ability.RANKS: {"ranks": 2},
    Ability.OWN_RANKS: {"reference.ranks": 1},
    Ability.SWAPPED: {"reference.placement": "swapped"},
    Ability.REFRESH: {"reference.refresh_every": 1},
    Ability.SLEEP: {"sleep": "all"},
    Ability.ROUTING_REPLAY: {"replay_routing": True},
    Ability.INDEXER_REPLAY: {"replay_indexer": True},
    Ability.OWN_WEIGHTS: {"weights": "folder"},
}
"""Ability → settings of a run that asks for it alone."""


class PolicyConformance(OfTrainer):
    """The policy on one rank."""

    @pytest.mark.parametrize("ability", ASKING)
    def test_a_run_is_refused_unless_its_ability_is_declared(self, ability: Ability) -> None:
        """By rlcore: what the trainer does not declare, it need not refuse by itself."""
        part, run = self.trainer(), RunConfig.of(**ASKING[ability])
        complaints = list(missing(part, setting_demands(run)))
        assert bool(complaints) == (ability not in self.config.abilities), complaints
        assert all(repr(part.name) in sentence for sentence in complaints), complaints

    def test_weights_in_its_own_form_are_those_of_the_directory(self, model: Path, tmp_path: Path) -> None:
        """`from_hf` makes a directory that `weights_in` knows; of others it knows none."""
        self.needs(Ability.OWN_WEIGHTS)
        unknown, gap = self.asked(trainer_checkpoints.from_own_weights, model, str(tmp_path / "own"))
        assert unknown is None, "`weights_in` takes a Hugging Face directory for one that `from_hf` made"
        assert gap < LOG_PROBS, f"log-probs are {gap} from those of the directory"

    def test_log_probs_are_those_of_transformers(self, model: Path) -> None:
        answers = self.asked(trainer_ranks.log_probs, model)
        assert all(apart < LOG_PROBS for apart in answers.values()), answers

    def test_the_gradient_of_a_linear_loss_is_that_of_autograd(self, model: Path) -> None:
        """The loss is one of log-probs, entropy and given tokens."""
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
        resumed = self.asked(trainer_checkpoints.resumed, model, folder)
        assert resumed[0] == wanted[0], "loss, norm and learning rate of the next step"
        equal(resumed[1], wanted[1])

    def test_what_cannot_be_loaded_is_refused(self, model: Path, tmp_path: Path) -> None:
        """By a CheckpointError: rlcore says what it says, and ends."""
        other = make_qwen3(tmp_path / "other", num_hidden_layers=1)
        folders = {name: str(tmp_path / name) for name in ("sound", "missing", "damaged", "of another model")}
        self.asked(trainer_checkpoints.trained, model, folders["sound"])
        self.asked(trainer_checkpoints.trained, other, folders["of another model"])
        trainer_checkpoints.damage(Path(folders["sound"]), Path(folders["damaged"]))
        said = self.asked(trainer_checkpoints.refusals, model, *folders.values())
        refused = dict.fromkeys(folders, "CheckpointError") | {"sound": "nothing"}
        raised = dict(zip(folders, said, strict=True))
        assert raised == refused, f"`load` raised {raised}"

    def test_a_checkpoint_becomes_a_directory_that_transformers_loads(
        self, model: Path, tmp_path: Path
    ) -> None:
        folders = str(tmp_path / "saved"), str(tmp_path / "converted")
        wanted = self.asked(trainer_checkpoints.trained, model, folders[0])
        log_probs = self.asked(trainer_checkpoints.converted, model, *folders)
        assert float((log_probs - wanted).abs().max()) < LOG_PROBS, "its log-probs are not the policy's"

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
        told = self.asked(trainer_ranks.not_finite, model)
        wanted = self.asked(trainer_ranks.undisturbed, model)
        assert told["finite"] == [False, False], "of a loss, and of a gradient, that is not finite"
        assert told["moved"] == 0, "it changed the weights"
        assert told["lr"] == wanted["lr"], "it counts for the schedule of the learning rate"
        equal(told["weights"], wanted["weights"])

    def test_the_learning_rate_is_scaled(self, model: Path) -> None:
        """A callback asks for it."""
        answers = self.asked(trainer_ranks.scaled, model)
        assert answers["half"] == pytest.approx(trainer_ranks.SETTINGS.lr / 2), answers
        assert answers["none"] == answers["moved"] == 0, answers

    def test_what_a_hook_freezes_stays(self, model: Path) -> None:
        """A weight decay does not move it either."""
        self.needs(Ability.MODEL_HOOKS)
        frozen, moved, published = self.asked(trainer_ranks.frozen, model)
        assert frozen, "its hooks are shown no parameters"
        assert moved.pop(frozen) == 0, f"what is frozen was trained: {frozen}"
        assert all(far > 0 for far in moved.values()), moved
        assert not all(published.values()), "the engines get another weight for what is frozen"

    def test_a_sleep_frees_the_device_and_changes_no_bit(self, model: Path) -> None:
        self.needs(Ability.SLEEP, Ability.SCORERS)
        slept, wanted = self.asked(trainer_ranks.slept, model), self.asked(trainer_ranks.awake, model)
        for kept in ("weights", "lent"):  # once awake, and while the weights alone are back for engines
            for mine, theirs in zip(slept[kept], wanted, strict=True):
                equal(mine, theirs)
        assert slept["moved"] == 0, "the reference came back as another"
        asleep, size = slept["left"], sum(tensor.nbytes for tensor in wanted[0].values())
        assert asleep[0] > asleep[1], "with `all`, weights lie in the device's memory no more"
        # gradients and two moments, in fp32; then the weights of policy and reference too
        assert slept["freed"][0] >= 3 * size, f"{slept['freed'][0]} bytes are freed, of {3 * size}"
        assert slept["freed"][1] >= 5 * size, f"{slept['freed'][1]} bytes are freed, of {5 * size}"


class TrainerConformance(PolicyConformance, RolesConformance, LayoutsConformance):
    """Subclass it and say which trainer; each property is a test, in processes of its own."""
