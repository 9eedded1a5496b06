"""The reward `math`, on answers whose equality is known."""

import os
import signal
import time
from typing import ClassVar

import pytest

from rlcore import Json, RewardPart, RewardStatus, Score
from rlcore.rollout.rewards import RewardPool
from rlcore.rollout.score_check import Failure, checked_scores
from rlcore_math.config import DapoConfig, DeepScalerConfig, MathConfig
from rlcore_math.limits import each
from rlcore_math.plugin import rlcore_rewards
from rlcore_math.reward import Dapo, Math
from rlcore_testing.rewards import Case, RewardConformance, sample

HALF = r"\frac{1}{2}"


@pytest.mark.full
class TestMath(RewardConformance):
    part = RewardPart(name="math", factory="rlcore_math.reward:Math", config=MathConfig())
    parts = frozenset({"answered", "over_limit"})
    cases: ClassVar = (
        Case(sample(r"Thus $\boxed{0.5}$", label=HALF), 1.0),
        Case(sample(r"Thus $\boxed{\dfrac{2}{4}}$.", label=HALF), 1.0),
        Case(sample("The answer is 1/2.", label=HALF), 1.0),
        Case(sample("I don't know", label=HALF), 0.0),
        Case(sample(r"\boxed{0.3}", label=HALF), 0.0),
        Case(sample(r"0.5 is wrong, so \boxed{2}", label=HALF), 0.0),
        Case(sample("So we have 41, then 42", label=42), 1.0),
        Case(sample(r"\boxed{1+x^2}", label="x^2+1"), 1.0),
        Case(sample(r"\boxed{(x+1)^2}", label="x^2+2x+1"), 1.0),
        Case(sample(r"$\boxed{\{3, 1, 2\}}$", label=r"$\{1,2,3\}$"), 1.0),
        Case(sample(r"\boxed{1,000}", label=1000), 1.0),
        Case(sample("4", label=None), None),
        Case(sample("4", label=[1]), 0.0),
        Case(sample("4", label={"answer": 4}), None),
    )


def test_only_a_boxed_answer_counts_where_it_is_asked_for() -> None:
    reward = Math(MathConfig(boxed=True))
    values = [
        reward.score([sample(text, "42")])[0].value for text in ("it is 42", r"it is \boxed{42}", "$42$")
    ]
    assert values == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(("decimals", "value"), [(2, 1.0), (6, 0.0)])
def test_decimals_say_how_close_numbers_must_be(decimals: int, value: float) -> None:
    reward = Math(MathConfig(decimals=decimals))
    assert reward.score([sample(r"\boxed{3.14159}", "3.141")])[0].value == value


@pytest.mark.parametrize("label", [True, {"answer": 1}, "", None])
def test_a_label_without_mathematics_is_no_score(label: Json) -> None:
    [outcome] = checked_scores(Math(MathConfig()), [sample("1", label)])
    assert isinstance(outcome, Failure)
    assert "label" in outcome.reason


ENDLESS = r"\boxed{\sum_{n=1}^{10^9} \frac{1}{n^2+n}}"
"""Sympy adds a sum of so many terms up for longer than anybody waits."""

BOMBS = [ENDLESS, r"\boxed{9^{9^{9^9}}}", r"\boxed{" + "(" * 20_000 + "1" + ")" * 20_000 + "}"]
SLOW_LABEL = r"\sum_{n=1}^{10^9} \frac{1}{n^2+n+1}"


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_answer_that_takes_too_long_is_wrong_alone(bomb: str) -> None:
    reward = Math(MathConfig(seconds=1))
    texts = (r"\boxed{2}", bomb, r"\boxed{3}", bomb, r"\boxed{2}")
    scores = reward.score([sample(text, "2", index=index) for index, text in enumerate(texts)])
    assert [score.value for score in scores] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert scores[2].parts == {"answered": 1.0, "over_limit": 0.0}


def test_an_answer_beyond_its_limits_says_so() -> None:
    [endless] = Math(MathConfig(seconds=0.5)).score([sample(ENDLESS, SLOW_LABEL)])
    assert endless == Score(value=0.0, parts={"answered": 1.0, "over_limit": 1.0})


def test_limits_are_of_each_text_and_end_nothing_else() -> None:
    def work(text: str) -> str:
        if text == "memory":
            bytes(1 << 30)  # which takes no time
        if text == "recursion":
            return work(text)
        if text == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "wait":
            time.sleep(0.6)  # no time of the processor
        while text == "time":
            9 ** (9**7)
        return text

    texts = ("a", "memory", "b", "recursion", "time", "killed", "wait")
    found = each(work, texts, seconds=0.4, memory_mib=256)
    assert found == ["a", None, "b", None, None, None, "wait"]
    with pytest.raises(ZeroDivisionError):
        each(lambda text: text[1 // len(text[1:])], ["ab", "a"], seconds=1, memory_mib=256)


async def test_a_group_that_takes_too_long_is_a_time_out() -> None:
    """Where an answer may take longer than its group."""
    component, *_ = rlcore_rewards()
    part = RewardPart(name="math", factory=component.factory, config=MathConfig(seconds=600))
    async with RewardPool([part], workers=1, timeout=3) as pool:
        [late] = await pool.score([sample(ENDLESS, SLOW_LABEL)])
    assert late.reward_status is RewardStatus.TIMED_OUT
    assert late.score is None


@pytest.mark.full
class TestDeepScaler(RewardConformance):
    part = RewardPart(name="deepscaler", factory="rlcore_math.reward:DeepScaler", config=DeepScalerConfig())
    parts = frozenset({"answered", "over_limit"})
    cases: ClassVar = (
        Case(sample(r"<think>\boxed{1}</think> so \boxed{\frac{2}{4}}", label=HALF), 1.0),
        Case(sample(r"thoughts ###Response \boxed{0.5}", label=HALF), 1.0),
        Case(sample(r"<think>\boxed{0.5}</think> so 0.5", label=HALF), 0.0),
        Case(sample(r"so \boxed{0.5}", label=HALF), 0.0),
        Case(sample(r"<think></think>\boxed{0.3}", label=HALF), 0.0),
    )


@pytest.mark.full
class TestDapo(RewardConformance):
    part = RewardPart(name="dapo", factory="rlcore_math.reward:Dapo", config=DapoConfig())
    parts = frozenset({"acc", "answered", "over_limit"})
    cases: ClassVar = (
        Case(sample("thoughts\nAnswer: 34", label=34), 1.0),
        Case(sample("Answer: 33\nno,\nanswer: $34$\n", label="34"), 1.0),
        Case(sample("Answer: 33", label=34), -1.0),
        Case(sample(r"so \boxed{34}", label=34), -1.0),
        Case(sample("Answer: 34" + "." * 291, label=34), -1.0),
    )


def test_dapo_says_apart_how_often_it_is_right() -> None:
    scores = Dapo(DapoConfig()).score([sample("Answer: 34", 34), sample("Answer: 35", 34)])
    assert [score.parts["acc"] for score in scores] == [1.0, 0.0]
