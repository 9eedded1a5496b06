"""`math`, `deepscaler` and `dapo` on a table of answers with right verdicts, and on slow texts."""

import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from rlcore_math.config import DapoConfig, DeepScalerConfig, MathConfig
from rlcore_math.places import last_box, last_value, on_line
from rlcore_math.reward import Dapo, DeepScaler, Math
from rlcore_testing.rewards import sample

TABLE = tomllib.loads(Path(__file__).with_name("answers.toml").read_text())
MISSED = {"math": {"10 m^2"}, "deepscaler": {"10 m^2"}, "dapo": {"10 m^2"}}
"""Right answers that score as wrong. No wrong one scores as right."""

REWARDS = {
    "math": (Math(MathConfig()), r"So \boxed{{{}}}."),
    "deepscaler": (DeepScaler(DeepScalerConfig()), r"<think>Hm</think> So \boxed{{{}}}."),
    "dapo": (Dapo(DapoConfig()), "So\nAnswer: {}"),
}


@pytest.mark.parametrize("name", REWARDS)
def test_verdicts_of_the_table(name: str) -> None:
    reward, place = REWARDS[name]
    rows = [(row, place) for row in TABLE["expression"]]
    rows += [(row, "{}") for row in TABLE["text"]] if name == "math" else []
    mistakes: set[str] = set()
    for row, template in rows:
        answers = [*row["right"], *row["wrong"]]
        samples = [sample(template.format(text), row["label"], index=i) for i, text in enumerate(answers)]
        right = [score.value == 1 for score in reward.score(samples)]
        expected = [True] * len(row["right"]) + [False] * len(row["wrong"])
        mistakes |= {text for text, got, want in zip(answers, right, expected, strict=True) if got != want}
    assert mistakes == MISSED[name]


PIECES = (
    *(
        r"\boxed{",
        r"\boxed",
        "{",
        "}",
        "$",
        r"\$",
        "$$",
        r"\(",
        r"\[",
        "answer",
        "answer is ",
        "Answer: ",
        "####",
        "\n",
    ),
    *(" ", "1", ",", "1,000", "1 000", "/", "-", "*", ".", "x", r"\frac", "<answer>", "</think>", "é"),
)


@pytest.mark.parametrize("find", [last_box, last_value, on_line])
@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_an_answer_is_found_fast(find: Callable[[str], str | None], pieces: list[str]) -> None:
    """In 0.1 s of the processor, with a margin for a slow machine."""
    text = ("".join(pieces) * 100_000)[:100_000]
    start = time.process_time()
    find(text)
    assert time.process_time() - start < 0.2
