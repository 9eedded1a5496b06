"""The callbacks that watch a metric: when they ask for what."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from rlcore import Callback, ConfigError, RunConfig, RunControl
from rlcore_stop_at.callbacks import AdaptiveKl, ReduceLr, StopAt
from rlcore_stop_at.config import AdaptiveKlConfig, ReduceLrConfig, StopAtConfig


def stop_at(metric: str = "loss", **config: Any) -> StopAt:
    return StopAt(StopAtConfig(metric=metric, **config))


def stops(callback: Callback, values: Sequence[float | None]) -> list[str]:
    """Why it would end the run after each value; empty: it would not."""
    rows = [{} if value is None else {"loss": value} for value in values]
    asked = [callback.after_step(step, row) or RunControl() for step, row in enumerate(rows, 1)]
    assert not any(one.evaluate or one.save or one.lr_scale for one in asked)
    return [one.stop for one in asked]


def test_a_bound_ends_the_run_when_it_is_reached() -> None:
    assert stops(stop_at(above=0.5), [0.25, 0.5]) == ["", "loss is 0.5, at least 0.5"]
    assert stops(stop_at(below=0.5), [0.75, 0.5]) == ["", "loss is 0.5, at most 0.5"]
    assert stops(stop_at(above=0.5), [None, 0.25, None]) == ["", "", ""]


@pytest.mark.parametrize(
    ("goal", "delta", "values", "ends"),
    [
        ("max", 0.0, [1, 2, 2, 1, 3, 2, 2, 2], 8),
        ("min", 0.0, [3, 2, 2, 2, 1, 1, 1, 1], 8),
        ("max", 0.5, [1, 1.5, 1.4, 1.45], 4),
        ("max", 0.5, [1, 1.51, 1.6, 2.02, 2, 2, 2], 7),
        ("max", 0.0, [1, None, 1, None, 1, None, 1], 7),
    ],
)
def test_patience_counts_values_that_are_no_better(
    goal: str, delta: float, values: list[float | None], ends: int
) -> None:
    found = stops(stop_at(patience=3, goal=goal, min_delta=delta), values)
    assert [step for step, why in enumerate(found, 1) if why] == [ends]
    assert "after 3 values no better than" in found[-1]


@pytest.mark.parametrize("split", [1, 3, 5])
def test_a_resumed_callback_goes_on_to_count(split: int) -> None:
    values = [1.0, 2.0, 2.0, 1.0, 1.5, 0.5]
    whole = stops(stop_at(patience=4), values)
    first, second = stop_at(patience=4), stop_at(patience=4)
    found = stops(first, values[:split])
    second.load(json.loads(json.dumps(first.state())))
    assert found + stops(second, values[split:]) == whole
    assert whole[-1]


def test_a_metric_of_an_evaluation_is_looked_for_there() -> None:
    callback = stop_at("eval/copy/score", above=0.9)
    assert callback.after_step(1, {"train/updates": 1.0, "loss": 2.0}) is None
    assert callback.after_evaluation(1, {"eval/copy/score": 0.5}) is None
    asked = callback.after_evaluation(2, {"eval/copy/score": 0.9})
    assert asked == RunControl(stop="eval/copy/score is 0.9, at least 0.9")


def test_a_metric_that_there_is_not_is_one_sentence() -> None:
    metrics = {"train/updates": 1.0, "train/loss": 2.0}
    with pytest.raises(ConfigError, match=r"--callback.stop-at.metric: found 'train/los', .*'train/loss'"):
        stop_at("train/los", above=1).after_step(1, metrics)
    assert stop_at("train/los", above=1).after_step(1, {"train/updates": 0.0}) is None
    with pytest.raises(ConfigError, match="expected one of eval/copy/score"):
        stop_at("eval/cpy/score", above=1).after_evaluation(0, {"eval/copy/score": 0.0})
    known = stop_at("train/loss", above=9)
    known.after_step(1, metrics)
    assert known.after_step(2, {"train/updates": 1.0}) is None, "a step may lack it"


def test_what_would_never_end_a_run_is_refused() -> None:
    with pytest.raises(ValidationError, match="nothing would end the run"):
        StopAtConfig(metric="loss")


def test_the_learning_rate_falls_to_its_floor() -> None:
    config = ReduceLrConfig(metric="loss", goal="min", patience=2, factor=0.5, min_scale=0.2)
    first, second = ReduceLr(config), ReduceLr(config)
    values = [4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0]

    def scales(callback: ReduceLr, part: Sequence[float]) -> list[float | None]:
        asked = [callback.after_step(1, {"loss": value}) for value in part]
        return [None if one is None else one.lr_scale for one in asked]

    expected = [None, None, None, 0.5, None, 0.25, None, None, 0.2, None, 0.2]
    found = scales(first, values[:5])
    second.load(json.loads(json.dumps(first.state())))
    assert found + scales(second, values[5:]) == expected


def kl_scales(callback: Callback, found: Sequence[float | None]) -> list[float | None]:
    rows = [{} if value is None else {"train/kl_reference": value} for value in found]
    asked = [callback.after_step(step, row) for step, row in enumerate(rows, 1)]
    return [None if one is None else one.kl_scale for one in asked]


def test_adaptive_kl() -> None:
    """Target .02, gain .5: 1 + .5 clip(KL / .02 - 1, -.2, .2); a step without training changes nothing."""
    callback = AdaptiveKl(AdaptiveKlConfig(target=0.02, gain=0.5))
    found = kl_scales(callback, [0.022, None, 0.2, 0.0, 0.02])
    assert found == pytest.approx([1.05, None, 1.05 * 1.1, 1.05 * 1.1 * 0.9, 1.05 * 1.1 * 0.9])
    again = AdaptiveKl(AdaptiveKlConfig(target=0.02, gain=0.5))
    again.load(json.loads(json.dumps(callback.state())))
    assert kl_scales(again, [0.02]) == [found[-1]]


def test_adaptive_kl_steers_one_policy() -> None:
    run = RunConfig.model_validate({"kl": {"kl_coef": 0.1}, "policy": {"critic": {}}})
    [said] = AdaptiveKlConfig(target=0.1).complaints("adaptive_kl", run, ())
    assert said.endswith("but there is --policy.critic; leave one out.")
