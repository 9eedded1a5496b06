"""The reward `code`: programs that pass their tests, that don't, and that pretend to."""

import json
from typing import Any, ClassVar

import pytest

from rlcore.api.errors import ConfigError
from rlcore.api.part import RewardPart
from rlcore.api.types import Json
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code, program_of
from rlcore_testing.rewards import Case, RewardConformance, sample

ECHO = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
ADD = ["assert add(1, 2) == 3", "assert add(3, 4) == 7"]
RIGHT = "def add(a, b):\n    return a + b"


def block(source: str) -> str:
    return f"Here it is:\n```python\n{source}\n```\nDone."


@pytest.mark.full
class TestCode(RewardConformance):
    part = RewardPart(name="code", factory="rlcore_code.reward:Code", config=CodeConfig(seconds=20))
    parts = frozenset({"passed", "timed_out"})
    cases: ClassVar = (
        Case(sample(block("print(sum(map(int, input().split())))"), ECHO), 1.0),
        Case(sample("print(3)", ECHO), 0.0),
        Case(sample(block(RIGHT), ADD), 1.0),
        Case(sample(block("def add(a, b):\n    return 3"), ADD), 0.0),
        Case(sample(block(RIGHT), "\n".join(ADD)), 1.0),
        Case(sample(RIGHT, None), None),
        Case(sample(RIGHT, {"inputs": ["1"], "outputs": []}), None),
    )


@pytest.fixture(scope="module")
def share() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


def test_the_share_of_tests_that_pass(share: Code) -> None:
    [asserts] = share.score([sample(block("def add(a, b):\n    return 3"), ADD)])
    [streams] = share.score([sample("print(7)", ECHO)])
    assert (asserts.value, streams.value) == (0.5, 0.5)
    assert streams.parts == {"passed": 0.5, "timed_out": 0.0}


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(0)",
        "print('[true, true]', flush=True)\nimport os; os._exit(0)",
        "import atexit, os\natexit.register(os._exit, 0)\nexit()",
    ],
)
def test_a_solution_that_ends_early_passes_nothing(share: Code, source: str) -> None:
    [score] = share.score([sample(source, ADD)])
    assert score.value == 0.0


def test_what_a_solution_prints_is_not_the_result(share: Code) -> None:
    [score] = share.score([sample(f"{RIGHT}\nprint('noise', end='')", ADD)])
    assert score.value == 1.0


def test_a_program_that_hangs_has_failed_and_says_so() -> None:
    reward = Code(CodeConfig(seconds=1, value="share"))
    hanging = "while True: pass"
    scores = [reward.score([sample(hanging, label)])[0] for label in (ADD, ECHO)]
    assert [(score.value, score.parts["timed_out"]) for score in scores] == [(0.0, 1.0)] * 2


def test_a_failing_program_with_right_output_has_failed(share: Code) -> None:
    label = {"inputs": [""], "outputs": ["3"]}
    [score] = share.score([sample("print(3)\nraise ValueError", label)])
    assert score.value == 0.0


@pytest.mark.parametrize(
    "label", [None, "", [], [1], {}, {"inputs": [], "outputs": []}, {"inputs": "1", "outputs": "1"}]
)
def test_a_label_without_tests_is_no_score(share: Code, label: Json) -> None:
    [outcome] = checked_scores(share, [sample("print(1)", label)])
    assert isinstance(outcome, Failure)
    assert "holds no tests" in outcome.reason


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```python\na\n```", "a\n"),
        ("```\na\n```\ntext\n```py\nb\n```", "b\n"),
        ("```python\ncut off", "cut off"),
        ("a = 1", "a = 1"),
    ],
)
def test_the_last_block_is_the_program(text: str, source: str) -> None:
    assert program_of(text) == source


def test_an_interpreter_of_ones_own_must_be_one() -> None:
    with pytest.raises(
        ConfigError, match=r"^--reward.code.python: found '/gone/python', which is no Python interpreter\.$"
    ):
        Code.check(CodeConfig(python="/gone/python"))


def test_tests_may_hold_any_text(share: Code) -> None:
    label: dict[str, Any] = {"inputs": ["ä\u2028\ud83d\n"], "outputs": [json.dumps("ä")]}
    [outcome] = checked_scores(
        share, [sample("import json\nprint(json.dumps(input()[0], ensure_ascii=False))", label)]
    )
    assert not isinstance(outcome, Failure)
