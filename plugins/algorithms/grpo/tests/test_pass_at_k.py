"""`pass_at_k` against all sets of k (https://arxiv.org/abs/2508.10751)."""

from itertools import combinations
from statistics import fmean, pstdev

import pytest

from rlcore_grpo.config import PassAtKConfig
from rlcore_grpo.pass_at_k import PassAtKAdvantage
from rlcore_testing.estimators import EstimatorConformance
from rlcore_testing.tensors import one_each, scored


def estimate(
    rewards: list[float], groups: list[int], k: int, rollouts: list[int] | None = None
) -> list[float]:
    return one_each(PassAtKAdvantage(PassAtKConfig(k=k)).estimate(scored(rewards, groups, rollouts)))


def test_by_hand() -> None:
    """1, 0, 0, 0 and k = 2: m = 1 - 3/6 = .5, s = .5; right: .5 / .5; wrong: (.5 - 2/3) / .5."""
    assert estimate([1, 0, 0, 0], [0] * 4, 2) == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3], abs=1e-6)


@pytest.mark.parametrize(
    "rewards", [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0.3, 2, -1, 0.3], [1, 0, 0]]
)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_it_is_the_mean_over_all_sets(rewards: list[float], k: int) -> None:
    """The advantage of a set is its best reward, less the mean, over the std of all sets."""
    sets = list(combinations(range(len(rewards)), k))
    best = [max(rewards[i] for i in chosen) for chosen in sets]
    std = pstdev(best)
    expected = [
        fmean((b - fmean(best)) / std for b, chosen in zip(best, sets, strict=True) if i in chosen)
        if std
        else 0.0
        for i in range(len(rewards))
    ]
    assert estimate(rewards, [0] * len(rewards), k) == pytest.approx(expected, abs=1e-6)


def test_groups_where_every_set_passes_or_none_have_nothing_to_say() -> None:
    assert estimate([1, 1, 0, 0, 0, 0, 0.1, 0.1, 0.1], [0, 0, 0, 1, 1, 1, 2, 2, 2], 2) == [0.0] * 9


def test_a_group_smaller_than_k_is_one_set() -> None:
    assert estimate([1, 0], [0, 0], 4) == [0.0, 0.0]


def test_samples_of_a_split_rollout_count_once() -> None:
    found = estimate([1, 1, 0, 0, 0], [0] * 5, 2, [5, 5, 2, 3, 4])
    assert found == pytest.approx([1, 1, -1 / 3, -1 / 3, -1 / 3], abs=1e-6)


class TestConformance(EstimatorConformance):
    scope = "group"

    def estimator(self) -> PassAtKAdvantage:
        return PassAtKAdvantage(PassAtKConfig(k=2))


def test_the_group_holds_k() -> None:
    assert PassAtKConfig(k=8).needed_group_size() == 8
    assert PassAtKConfig(k=1).needed_group_size() == 2
