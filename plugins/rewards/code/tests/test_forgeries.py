"""Programs that try to be told right without being so. Each scores what a program that is wrong scores."""

import textwrap
import tomllib
from pathlib import Path

import pytest

from rlcore.api.types import Json, Score
from rlcore.rollout.score_check import checked_scores
from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code
from rlcore_testing.rewards import sample

FORGERIES = tomllib.loads(Path(__file__).with_name("forgeries.toml").read_text())
ADD = FORGERIES["tests"]["ADD"]
STREAMS = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]}


@pytest.fixture(scope="module")
def reward() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


def score(reward: Code, source: str, label: Json) -> Score:
    """Judged as a worker judges it, beside a sibling that is right about nothing and has a score too."""
    block = f"```python\n{textwrap.dedent(source)}\n```"
    outcomes = checked_scores(reward, [sample(block, label), sample("pass", label, index=1)])
    assert all(isinstance(outcome, Score) for outcome in outcomes), outcomes
    first = outcomes[0]
    assert isinstance(first, Score)
    return first


@pytest.mark.grid
@pytest.mark.parametrize("name", FORGERIES["asserts"])
def test_a_forged_answer_to_asserts_is_a_wrong_one(reward: Code, name: str) -> None:
    case = FORGERIES["asserts"][name]
    source = FORGERIES["preludes"].get(case.get("prelude"), "") + case["program"]
    label = case["tests"] if isinstance(case["tests"], list) else FORGERIES["tests"][case["tests"]]
    assert score(reward, source, label) == Score(value=0.0, parts={"passed": 0.0, "timed_out": 0.0})


@pytest.mark.grid
@pytest.mark.parametrize("name", FORGERIES["hanging"])
def test_a_program_that_hangs_is_a_wrong_one(name: str) -> None:
    found = score(Code(CodeConfig(value="share", seconds=1)), FORGERIES["hanging"][name], ADD)
    assert (found.value, found.parts["passed"]) == (0.0, 0.0)


@pytest.mark.grid
@pytest.mark.parametrize("name", FORGERIES["streamed"])
def test_a_forged_answer_to_streams_is_a_wrong_one(reward: Code, name: str) -> None:
    found = score(reward, FORGERIES["streamed"][name], STREAMS)
    assert found == Score(value=0.0, parts={"passed": 0.0, "timed_out": 0.0})
