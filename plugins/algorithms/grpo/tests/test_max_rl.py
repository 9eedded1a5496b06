"""The advantage `max_rl` against numbers worked out by hand.

The formula is that of https://arxiv.org/abs/2602.02710: (reward - mean) / mean, 0 without any success.
"""

import pytest

from rlcore.api.errors import RunError
from rlcore_grpo.config import MaxRlConfig
from rlcore_grpo.max_rl import MaxRlAdvantage
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import one_each, scored


def estimate(rewards: list[float], groups: list[int], rollouts: list[int] | None = None) -> list[float]:
    """One advantage a sample; each sample has two response tokens, which must agree."""
    return one_each(MaxRlAdvantage(MaxRlConfig()).estimate(scored(rewards, groups, rollouts)))


def test_one_success_in_four() -> None:
    """Mean .25: (1 - .25) / .25 = 3 and -1, where `grpo` gives 1.5 and -.5 and Dr. GRPO .75 and -.25."""
    assert estimate([1, 0, 0, 0], [0] * 4) == [3, -1, -1, -1]


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 2.5])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    assert estimate([reward] * 7, [0] * 7) == [0.0] * 7


def test_uneven_interleaved_groups() -> None:
    """Groups (1, 0, 0, 0), (0, 0), (1, 1, 0) and one of one, rewards that are no 0 and 1 among them."""
    rewards = [1.0, 0, 1, 0, 0, 1, 0, 0, 0, 5]
    groups = [7, 2, 4, 7, 7, 4, 4, 2, 7, 9]
    expected = [3, 0, 0.5, -1, -1, 0.5, -1, 0, -1, 0]
    assert estimate(rewards, groups) == pytest.approx(expected, abs=1e-6)
    assert estimate([0.5, 1.5, 4], [0, 0, 0]) == pytest.approx([-0.75, -0.25, 1], abs=1e-6)


def test_advantages_of_a_group_add_up_to_nothing_and_do_not_depend_on_the_scale() -> None:
    found = estimate([0.2, 0.7, 0, 3], [1] * 4)
    assert sum(found) == pytest.approx(0, abs=1e-6)
    assert estimate([0.6, 2.1, 0, 9], [1] * 4) == pytest.approx(found, abs=1e-6)


def test_samples_of_a_split_rollout_count_once() -> None:
    """Rollouts with rewards 1 and 0; the first was split in three: mean .5, so 1 and -1."""
    assert estimate([1, 1, 0, 1], [0] * 4, [5, 5, 2, 5]) == [1, 1, -1, 1]


class TestConformance(EstimatorConformance):
    scope = "group"

    def estimator(self) -> MaxRlAdvantage:
        return MaxRlAdvantage(MaxRlConfig())


def test_a_negative_reward_is_refused() -> None:
    with pytest.raises(RunError, match=r"--advantage max_rl: found a reward of -0\.5, expected 0 or more"):
        estimate([1, -0.5], [0, 0])
