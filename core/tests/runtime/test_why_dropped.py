"""What a step says that trains on nothing."""

from rlcore.runtime.loop import why_dropped


def test_the_failure_of_the_samples_is_named() -> None:
    metrics = {"rollout/failed": 8, "rollout/failed/no_room": 8, "rollout/groups_dropped/failed": 2}
    assert why_dropped(metrics) == (
        "all groups were dropped (rollout/failed/no_room: 8, rollout/groups_dropped/failed: 2)"
    )
    assert why_dropped({"rollout/failed": 0}) == "no group was made"
