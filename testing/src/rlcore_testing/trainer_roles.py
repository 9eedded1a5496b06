"""The models beside the policy: critic, reference and teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlcore.api.ability import Ability
from rlcore_testing import trainer_ranks, trainer_role_ranks
from rlcore_testing.trainer_base import LOG_PROBS, SUMS, OfTrainer
from rlcore_testing.trainer_role_ranks import CRITIC
from rlcore_toolkit import learning_rate

SLOPE = 0.1
"""Relative difference of a slope and a small step along it."""
SEEN = 1e-6
"""A value that moves by less has not seen what was changed."""


class RolesConformance(OfTrainer):
    """The roles that the trainer declares, on workers of their own if it declares these too."""

    @pytest.mark.parametrize("is_swapped", [False, True], ids=["resident", "swapped"])
    def test_a_reference_stays_where_it_was(self, model: Path, is_swapped: bool) -> None:
        self.needs(Ability.SCORERS, *([Ability.SWAPPED] if is_swapped else []))
        answers = self.asked(trainer_ranks.reference, model, is_swapped)
        assert answers["kept"] == 0, "it moved with the policy"
        assert answers["apart"] > LOG_PROBS, "the policy did not move"

    @pytest.mark.parametrize("is_swapped", [False, True], ids=["resident", "swapped"])
    def test_a_reference_takes_over_the_policy(self, model: Path, is_swapped: bool) -> None:
        self.needs(Ability.REFRESH, *([Ability.SWAPPED] if is_swapped else []))
        answers = self.asked(trainer_ranks.refreshed, model, is_swapped)
        assert answers["copied"] < LOG_PROBS, "it is not the policy after `copy_weights`"
        assert answers["loaded"] < LOG_PROBS, "it is not the policy after `load` of what the policy staged"

    @pytest.mark.parametrize("role", ["reference", "teacher"])
    def test_the_scores_are_those_of_transformers(self, model: Path, other: Path, role: str) -> None:
        """Scores of the model in a directory of its own, before and after a step of the policy."""
        self.needs(Ability.SCORERS)
        # a reference has the policy's architecture
        path = other if role == "teacher" else trainer_role_ranks.with_other_weights(model, other)
        answers = self.asked(trainer_role_ranks.scored, model, role, str(path))
        assert answers.pop("kept") == 0, "it moved with the policy"
        assert all(apart < LOG_PROBS for apart in answers.values()), answers

    def test_a_value_is_that_of_the_state_before_its_token(self, model: Path) -> None:
        """Values of a critic: one fp32 number for each response token, which sees all tokens before it."""
        self.needs(Ability.VALUES)
        told = self.asked(trainer_role_ranks.valued, model)
        column = (torch.float32, "cpu", (told["tokens"],), False)
        assert told["column"] == column, f"dtype, device, shape and gradient are {told['column']}"
        assert told["spread"] > 0, "after three steps every token has the same value"
        assert told["split"] < LOG_PROBS, "values depend on how the batch is split"
        assert told["of its own token"] < SEEN, "a value changes with the token that it stands before"
        assert told["of the token before"] > SEEN, "a value does not see the token before its own"

    def test_a_critic_learns_and_says_what_it_lost(self, model: Path) -> None:
        self.needs(Ability.VALUES)
        steps, wanted, values = self.asked(trainer_role_ranks.fitted, model, trainer_ranks.BUDGET)
        small, _, others = self.asked(trainer_role_ranks.fitted, model, trainer_ranks.SMALL_BUDGET)
        losses = [step.loss for step in steps]
        assert losses == pytest.approx(wanted, rel=SUMS), f"the losses of its values were {wanted}"
        assert losses == sorted(losses, reverse=True), f"it does not learn: its losses are {losses}"
        assert losses[-1] < losses[0], f"it does not learn: its losses are {losses}"
        tokens = float(len(values))
        assert [step.metrics["tokens"] for step in (*steps, *small)] == [tokens] * 8, "sums of metrics"
        rates = [step.lr for step in steps]
        wanted_rates = [learning_rate(CRITIC, number) for number in range(len(steps))]
        assert rates == wanted_rates, f"its learning rates are {rates}, its optimizer's are {wanted_rates}"
        for whole, two in zip(steps, small, strict=True):
            assert two.loss == pytest.approx(whole.loss, rel=SUMS), "its loss depends on the split"
            assert two.grad_norm == pytest.approx(whole.grad_norm, rel=SUMS), "its norm depends on the split"
        assert float((values - others).abs().max()) < LOG_PROBS, "its step depends on the split"

    def test_the_gradient_of_a_critic_is_that_of_its_loss(self, model: Path) -> None:
        """A small step along a gradient takes the square of its norm from the loss."""
        self.needs(Ability.VALUES)
        drop, wanted = self.asked(trainer_role_ranks.descended, model)
        assert drop == pytest.approx(wanted, rel=SLOPE), (
            f"a small step takes {drop} from the loss, by the gradient norm it would be {wanted}"
        )

    def test_a_step_of_the_critic_that_is_not_finite_is_not_taken(self, model: Path) -> None:
        self.needs(Ability.VALUES)
        finite, moved, lr, values = self.asked(trainer_role_ranks.critic_not_finite, model)
        wanted_lr, wanted = self.asked(trainer_role_ranks.critic_undisturbed, model)
        assert finite == [False, False], "of a loss, and of a gradient, that is not finite"
        assert moved == 0, "it changed the weights"
        assert lr == wanted_lr, "it counts for the schedule of the learning rate"
        assert torch.equal(values, wanted), "what follows is another"

    def test_a_critic_resumes_to_the_last_bit(self, model: Path, tmp_path: Path) -> None:
        """In a new process, which has nothing but what was written."""
        self.needs(Ability.VALUES)
        folder = str(tmp_path / "saved")
        wanted = self.asked(trainer_role_ranks.critic_saved, model, folder)
        resumed = self.asked(trainer_role_ranks.critic_resumed, model, folder)
        assert torch.equal(resumed[0], wanted[0]), "its values are others"
        assert resumed[1:3] == wanted[1:3], "loss and norm of the next step"
        assert torch.equal(resumed[3], wanted[3]), "its values after the next step are others"

    def test_a_critic_and_the_policy_of_its_worker_leave_each_other_alone(self, model: Path) -> None:
        self.needs(Ability.VALUES)
        told = self.asked(trainer_role_ranks.beside, model)
        assert told["policy_trained"] > LOG_PROBS, "a step changed nothing in the policy"
        assert told["critic_trained"] > LOG_PROBS, "steps changed nothing in the critic"
        assert told["critic_moved"] == 0, "the critic moved with the policy"
        assert told["policy_moved"] == 0, "the policy moved with the critic"
        rates = told["policy_lr"], told["critic_lr"]
        wanted = trainer_ranks.SETTINGS.lr, learning_rate(CRITIC, 1)
        assert rates == wanted, f"learning rates of the two: {rates}, their optimizers' are {wanted}"

    @pytest.mark.parametrize("role", ["teacher", "critic"])
    def test_a_sleep_changes_no_bit_of_the_others(self, model: Path, role: str) -> None:
        self.needs(Ability.SLEEP, Ability.VALUES if role == "critic" else Ability.SCORERS)
        freed, said = self.asked(trainer_role_ranks.rested, model, role)
        wanted = self.asked(trainer_role_ranks.restless, model) if role == "critic" else [said[0]] * 3
        for weights, expected in zip(said, wanted, strict=True):
            assert torch.equal(weights, expected), "it came back as another"
        assert freed[1] > freed[0], "with `all`, its weights lie in the device's memory no more"
