"""The reward `math`, on answers whose equality is known."""

from typing import ClassVar

import pytest

from rlcore.rollout.judge import Failure, judge
from rlcore.rollout.rewards import RewardPool
from rlcore.spec import RewardPart
from rlcore.testing.rewards import Case, RewardConformance, sample
from rlcore.types import Json, RewardStatus
from rlcore_math.config import MathConfig
from rlcore_math.plugin import rlcore_rewards
from rlcore_math.reward import Math

HALF = r"\frac{1}{2}"


class TestMath(RewardConformance):
    part = RewardPart(name="math", factory="rlcore_math.reward:Math", config=MathConfig())
    parts = frozenset({"answered"})
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
        Case(sample("4", label=[1]), None),
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
    [outcome] = judge(Math(MathConfig()), [sample("1", label)])
    assert isinstance(outcome, Failure)
    assert "label" in outcome.reason


async def test_a_comparison_without_end_is_a_time_out() -> None:
    """Sympy adds a sum of so many terms up for longer than anybody waits."""
    [component] = rlcore_rewards()
    part = RewardPart(name="math", factory=component.factory, config=MathConfig())
    answer = r"\boxed{\sum_{n=1}^{10^9} \frac{1}{n^2+n}}"
    with RewardPool([part], workers=1, timeout=3) as pool:
        [late] = await pool.score([sample(answer, r"\sum_{n=1}^{10^9} \frac{1}{n^2+n+1}")])
    assert late.reward_status is RewardStatus.TIMED_OUT
    assert late.score is None
