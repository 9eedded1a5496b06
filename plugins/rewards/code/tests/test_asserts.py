"""Tests of the form `assert`: what they may ask of a program, which runs in another process."""

import tomllib
from pathlib import Path

import pytest

from rlcore_code.config import CodeConfig
from rlcore_code.reward import Code
from rlcore_testing.rewards import sample

WORKS = tomllib.loads(Path(__file__).with_name("asserts.toml").read_text())


@pytest.fixture(scope="module")
def reward() -> Code:
    return Code(CodeConfig(value="share", seconds=20))


@pytest.mark.parametrize("name", WORKS)
def test_what_a_test_may_ask_of_a_program(reward: Code, name: str) -> None:
    [score] = reward.score([sample(WORKS[name]["program"], WORKS[name]["tests"])])
    assert score.value == 1.0


@pytest.mark.parametrize(
    "test",
    [
        "assert add(1, 2) == 4",
        "raise SystemExit",
        "assert missing(1) == 1",
        "assert add(object(), 2)",
        "import nothing_of_this_name",
    ],
)
def test_one_test_that_fails_leaves_the_others(reward: Code, test: str) -> None:
    right = "assert add(1, 2) == 3"
    [score] = reward.score([sample("def add(a, b): return a + b", [right, test, right])])
    assert score.value == pytest.approx(2 / 3)


def test_a_test_knows_no_name_of_a_program_that_it_does_not_use(reward: Code) -> None:
    """What the program is asked for, as it can see it itself."""
    spy = (
        "import gc\nclass Names(dict): pass\nasked = []\n"
        "program = next(one for one in gc.get_objects() if type(one).__name__ == 'Program')\n"
        "real = program._asks['name']\n"
        "program._asks['name'] = lambda name: (asked.append(name), real(name))[1]\n"
        "def names(n): return asked"
    )
    tests = [
        "expected, secret = ['names'], 7\ndef check(candidate):\n    assert candidate(secret) == expected",
        "check(names)",
    ]
    [score] = reward.score([sample(spy, tests)])
    assert score.value == 1.0
