"""The reward `multiple_choice`, on the ways in which responses name an option."""

from typing import ClassVar

import pytest

from rlcore.api.part import RewardPart
from rlcore.api.types import Json
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_choice.config import MultipleChoiceConfig
from rlcore_choice.reward import MultipleChoice
from rlcore_testing.rewards import Case, RewardConformance, sample

CITIES = {"choices": ["Rome", "Paris", "Greater Paris", "Oslo"]}


class TestMultipleChoice(RewardConformance):
    part = RewardPart(
        name="multiple_choice", factory="rlcore_choice.reward:MultipleChoice", config=MultipleChoiceConfig()
    )
    parts = frozenset({"answered"})
    cases: ClassVar = (
        Case(sample("B", "B"), 1.0),
        Case(sample("(B)", "B"), 1.0),
        Case(sample("**B**.", "B"), 1.0),
        Case(sample("A is too small, so B", "B"), 1.0),
        Case(sample("The answer is (B) because A is wrong", "B"), 1.0),
        Case(sample("Answer: **B**\nI hope this helps.", "B"), 1.0),
        Case(sample("the correct answer is option b", "B"), 1.0),
        Case(sample("<think>A?</think><answer>B</answer>", "B"), 1.0),
        Case(sample(r"answer: A ... no: \boxed{B}", "B"), 1.0),
        Case(sample(r"$\boxed{\text{(B)}}$", "B"), 1.0),
        Case(sample("answer: A. Wait, the answer is B", "B"), 1.0),
        Case(sample("A", "B"), 0.0),
        Case(sample("F", "B"), 0.0),
        Case(sample("Because", "B"), 0.0),
        Case(sample("It is hard to say.", "B"), 0.0),
        Case(sample("The answer is about A4 paper", "A"), 0.0),
        Case(sample("I would say Paris.", 1, metadata=CITIES), 1.0),
        Case(sample("Surely greater Paris", "Greater Paris", metadata=CITIES), 1.0),
        Case(sample("Paris", "Greater Paris", metadata=CITIES), 0.0),
        Case(sample("D", 3, metadata=CITIES), 1.0),
    )


def test_a_lone_letter_may_be_too_little() -> None:
    reward = MultipleChoice(MultipleChoiceConfig(marked=True))
    scores = reward.score([sample("B", "B"), sample("The answer is B", "B")])
    assert [(score.value, score.parts["answered"]) for score in scores] == [(0.0, 0.0), (1.0, 1.0)]


@pytest.mark.parametrize(
    ("label", "choices"),
    [("E", None), (4, None), (-1, None), (True, None), (None, None), ("A", [])],
)
def test_a_label_that_is_no_option_is_no_score(label: Json, choices: Json) -> None:
    metadata = {} if choices is None else {"choices": choices}
    [outcome] = checked_scores(
        MultipleChoice(MultipleChoiceConfig()), [sample("A", label, metadata=metadata)]
    )
    assert isinstance(outcome, Failure)
