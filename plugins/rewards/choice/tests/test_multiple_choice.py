"""The reward `multiple_choice`, on the ways in which responses name an option."""

import json
import random
import time
from pathlib import Path
from typing import ClassVar

import pytest

from rlcore import Json, RewardPart
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_choice.config import MultipleChoiceConfig
from rlcore_choice.reward import LOOKED_AT, MultipleChoice
from rlcore_testing.rewards import Case, RewardConformance, sample

CITIES = {"choices": ["Rome", "Paris", "Greater Paris", "Oslo"]}
NUMBERS = {"choices": ["5", "15", "-5", "0.5"]}
SETTLED = [json.loads(line) for line in Path(__file__).with_name("settled.jsonl").read_text().splitlines()]
"""Texts, and the option that each settles on; None: it settles on none."""


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
        Case(sample(r"\boxed{\text{Oslo}}", 3, metadata=CITIES), 1.0),
        Case(sample("It is not Paris.", "Paris", metadata=CITIES), 0.0),
        Case(sample("It is Rome or Paris.", "Paris", metadata=CITIES), 0.0),
        Case(sample("The result is 15.", "5", metadata=NUMBERS), 0.0),
        Case(sample("The result is 15.", "15", metadata=NUMBERS), 1.0),
        Case(sample("The result is -5", "5", metadata=NUMBERS), 0.0),
        Case(sample("A. Rome\nB. Paris\nC. Greater Paris\nD. Oslo", "D", metadata=CITIES), 0.0),
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


def test_texts_settle_on_their_option_and_on_no_other() -> None:
    reward = MultipleChoice(MultipleChoiceConfig())
    assert sum(row["settles"] is not None for row in SETTLED) >= 150
    wrong = [
        (row["says"], label, score.value)
        for row in SETTLED
        for label in "ABCD"
        for score in reward.score([sample(row["says"], label)])
        if score.value != (label == row["settles"])
    ]
    assert wrong == []


def test_an_answer_far_from_the_end_is_not_looked_for() -> None:
    near_text = "The answer is B." + "\nhm" * (LOOKED_AT // 3 - 20)
    far_text = "The answer is B." + "\nhm" * LOOKED_AT
    samples = [sample(near_text, "B"), sample(far_text, "B")]
    [near, far] = MultipleChoice(MultipleChoiceConfig()).score(samples)
    assert (near.value, far.value) == (1.0, 0.0)


PIECES = [
    *("answer", "answer is ", "so ", "not ", "B, ", "(A) ", "A\n", "\\boxed{", "\\text{", "{", "}", "(", "*"),
    *(
        "\n",
        " ",
        " \n",
        "A) x\n",
        "<answer>",
        "</think>",
        "1",
        "é",
        "答案",
        "'",
        "…",
        "A",
        "a ",
        "B is ",
        ".",
    ),
]


@pytest.mark.parametrize("seed", range(12))
def test_the_time_does_not_explode(seed: int) -> None:
    """Repeated pieces, alone and mixed, of 100,000 characters each. A quadratic pattern takes minutes."""
    draw = random.Random(seed)
    reward = MultipleChoice(MultipleChoiceConfig())
    cities = ["Rome", "a " * 5_000, "(", "B, " * 1_000]
    texts = ["".join(draw.choices(PIECES, k=draw.randint(1, 4))) for _ in range(4)]
    texts += [piece for place, piece in enumerate(PIECES) if place % 12 == seed]
    for piece in texts:
        text = "answer" + (piece * 100_000)[:100_000] + draw.choice(["1", "", "B", "}"])
        start = time.process_time()
        reward.score([sample(text, "A", metadata={"choices": cities})])
        assert time.process_time() - start < 2, repr(piece)


def test_options_as_arc_has_them() -> None:
    choices: Json = {"text": ["sun", "moon"], "label": ["1", "2"]}
    answers = [sample(text, "2", metadata={"choices": choices}) for text in ("So B.", "The answer is (A).")]
    assert [score.value for score in MultipleChoice(MultipleChoiceConfig()).score(answers)] == [1.0, 0.0]
