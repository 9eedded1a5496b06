"""What a run is warned of, by its metrics."""

import pytest

from rlcore import Json
from rlcore_toolkit import Alerts


def found(*rows: dict[str, Json]) -> list[tuple[str, int]]:
    """Name and step of each alert that begins."""
    alerts = Alerts()
    steps = enumerate(rows, 1)
    return [(alert.name, alert.last) for step, row in steps for alert in alerts.add({"step": step, **row})]


@pytest.mark.parametrize(
    ("key", "start", "fine", "wrong", "name", "more"),
    [
        ("train/advantage_std", 1.0, 1e-3, 0.0, "no signal", {"train/advantage_mean": 0.0}),
        ("rollout/truncated", 0.9, 0.49, 0.5, "truncated", {}),
        ("train/entropy", 2.0, 0.21, 0.19, "entropy", {"train/kl_engine_comparable": 1}),
        ("train/kl_engine", 0.002, 0.0099, 0.0101, "gap", {}),
        ("train/kl_engine", 1e-7, 9e-4, 2e-3, "gap", {}),
    ],
)
def test_an_alert_begins_after_five_steps_in_a_row(
    key: str, start: float, fine: float, wrong: float, name: str, more: dict[str, Json]
) -> None:
    usual: list[dict[str, Json]] = [{key: start, **more}] * 20
    bad: list[dict[str, Json]] = [{key: wrong, **more}]
    evaluation: list[dict[str, Json]] = [{"eval/step": 20}]
    assert found(*usual, *bad * 4, {key: fine, **more}, *bad * 4) == []
    assert found(*usual, *bad * 3, *evaluation, {key: None, **more}, *bad * 4) == [(name, 27)]


def test_given_responses_need_no_entropy() -> None:
    assert found(*[{"train/entropy": 2.0}] * 5, *[{"train/entropy": 0.1}] * 9) == []


def test_log_probs_that_cannot_be_compared_have_no_gap() -> None:
    assert (
        found(
            *[{"train/kl_engine": 0.0}] * 5, *[{"train/kl_engine": 1.0, "train/kl_engine_comparable": 0}] * 9
        )
        == []
    )


def test_a_policy_that_nothing_asks_is_told_once() -> None:
    key, other = "policy.critic/updates", "policy.judge/updates"
    assert found(*[{key: 0.0, other: 1.0}] * 9) == [("idle critic", 5)]
    assert found(*[{key: 0.0}] * 4, {key: 1.0}, *[{key: 0.0}] * 4) == []


@pytest.mark.parametrize(
    ("metric", "start", "wrong", "name", "more"),
    [
        ("advantage_std", 1.0, 0.0, "no signal", {"advantage_mean": 0.0}),
        ("truncated", 0.0, 1.0, "truncated", {}),
        ("entropy", 2.0, 0.1, "entropy", {"kl_engine_comparable": 1}),
        ("kl_engine", 0.0, 0.1, "gap", {}),
        ("updates", 1.0, 0.0, "idle", {}),
    ],
)
def test_each_policy_has_its_alerts(
    metric: str, start: float, wrong: float, name: str, more: dict[str, Json]
) -> None:
    def row(own: float, critic: float) -> dict[str, Json]:
        both = {"train": own, "policy.critic": critic}
        rest = {f"{prefix}/{key}": value for prefix in both for key, value in more.items()}
        return {f"{prefix}/{metric}": value for prefix, value in both.items()} | rest

    usual = [row(start, start)] * 20
    assert found(*usual, *[row(start, wrong)] * 5) == [(f"{name} critic", 25)]
    assert found(*usual, *[row(wrong, start)] * 5) == [(name, 25)]


def test_a_critic_that_trains_alone_leaves_no_policy_idle() -> None:
    assert found(*[{"train/updates": 0.0}] * 9) == []
