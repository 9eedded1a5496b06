"""The metrics of samples that need their groups."""

from dataclasses import replace

import pytest

from rlcore.api.types import GenerationStatus, Score, Span
from rlcore_testing.rewards import sample
from rlcore_toolkit import sample_metrics

CUT, DONE = GenerationStatus.TRUNCATED, GenerationStatus.COMPLETED


@pytest.mark.parametrize(
    ("groups", "share"),
    [
        ([[0, 0, 0], [1, 0, 1]], 0.5),
        ([[0, 0], [1, 1]], 1.0),
        ([[0, 1], [1, 0]], 0.0),
        ([[0], [1, 1], [2]], 1.0),
        ([[0, None], [1, None, 0]], 0.0),
    ],
)
def test_the_share_of_groups_whose_rewards_are_all_equal(
    groups: list[list[float | None]], share: float
) -> None:
    samples = [
        replace(
            sample("x", index=index),
            group_id=group,
            rollout_id=f"{group}.{index}",
            score=None if reward is None else Score(value=reward),
        )
        for group, rewards in enumerate(groups)
        for index, reward in enumerate(rewards)
    ]
    assert sample_metrics(samples)["rollout/groups_equal"] == share


def test_pieces_of_one_rollout_are_no_group() -> None:
    pieces = [replace(sample("x"), score=Score(value=1.0)) for _ in range(2)]
    assert "rollout/groups_equal" not in sample_metrics(pieces)


def test_truncation_and_reward_of_each_policy() -> None:
    samples = [
        replace(
            sample("x"),
            status=status,
            score=Score(value=reward),
            spans=(Span(start=0, version=0, policy=policy),),
        )
        for policy, status, reward in [("", CUT, 1.0), ("", DONE, 0.5), ("critic", CUT, 0.0)]
    ]
    found = sample_metrics(samples)
    assert (found["train/truncated"], found["policy.critic/truncated"]) == (0.5, 1.0)
    assert (found["train/reward_mean"], found["policy.critic/reward_mean"]) == (0.75, 0.0)
    assert found["rollout/truncated"] == pytest.approx(2 / 3)
    assert "train/truncated" not in sample_metrics(samples[:2])
