"""Callbacks of a run, taken together: what they ask for, what a checkpoint keeps, and their faults."""

import json
import math
from typing import Any

import pytest

from rlcore import Callback, DataError, PluginError, RunControl
from rlcore.learning.settings import Scales
from rlcore.runtime.callbacks import Callbacks


class Asks(Callback):
    """Asks for the same each time, and counts."""

    def __init__(self, step: RunControl | None = None, evaluation: RunControl | None = None) -> None:
        self.step, self.evaluation = step, evaluation
        self.calls: list[tuple[str, int, dict[str, Any]]] = []

    def after_step(self, step: int, metrics: Any) -> RunControl | None:
        self.calls.append(("step", step, metrics))
        metrics["mine"] = 1  # its own copy
        return self.step

    def after_evaluation(self, step: int, metrics: Any) -> RunControl | None:
        self.calls.append(("evaluation", step, metrics))
        return self.evaluation

    def state(self) -> Any:
        return {"calls": len(self.calls)}

    def load(self, state: Any) -> None:
        self.calls = [("before", 0, {})] * state["calls"]


def test_without_callbacks_nothing_is_asked_for() -> None:
    none = Callbacks({})
    assert none.after_step(1, {}) == none.after_evaluation(1, {}) == RunControl()
    assert (none.scales, none.state()) == (Scales(), {})


def test_what_several_ask_for_is_taken_together() -> None:
    first, second = Asks(RunControl(save=True, stop="enough")), Asks(RunControl(evaluate=True, stop="too"))
    both, row = Callbacks({"a": first, "b": second}), {"step": 3}
    assert both.after_step(3, row) == RunControl(evaluate=True, save=True, stop="a: enough")
    assert row == {"step": 3}
    assert both.after_evaluation(3, {"eval/x/score": 1.0}) == RunControl()
    assert second.calls == [
        ("step", 3, {"step": 3, "mine": 1}),
        ("evaluation", 3, {"eval/x/score": 1.0}),
    ]


def test_scales_stay_and_are_multiplied() -> None:
    first = Asks(RunControl(lr_scale=0.5, kl_scale=3))
    second = Asks(evaluation=RunControl(lr_scale=0.25, kl_scale=2))
    both = Callbacks({"a": first, "b": second})
    both.after_step(1, {})
    assert both.scales == Scales(lr=0.5, kl=3)
    first.step = None
    both.after_evaluation(1, {})
    both.after_step(2, {})
    assert both.scales == Scales(lr=0.125, kl=6)


def test_a_checkpoint_keeps_scales_and_states() -> None:
    first, second = Asks(RunControl(lr_scale=0.1)), Asks()
    saved = Callbacks({"a": first, "b": second})
    saved.after_step(1, {})
    state = saved.state()
    saved.after_step(2, {})
    assert state["a"] == {"scales": {"lr": 0.1, "kl": 1.0}, "state": {"calls": 1}}, "a copy of then"
    again, new = Asks(), Asks()
    resumed = Callbacks({"new": new, "a": again})
    resumed.load(json.loads(json.dumps(state)))
    assert resumed.scales == Scales(lr=0.1)
    assert (len(again.calls), len(new.calls)) == (1, 0)


@pytest.mark.parametrize("scale", [-0.5, math.nan, math.inf, "0.5", [0.5]])
def test_a_scale_that_means_nothing_is_refused(scale: Any) -> None:
    for asked in (RunControl(lr_scale=scale), RunControl(kl_scale=scale)):
        with pytest.raises(PluginError, match=r"'a' set (lr|kl)_scale to .*; expected a number of at"):
            Callbacks({"a": Asks(asked)}).after_step(1, {})


@pytest.mark.parametrize(("asked", "said"), [({"lr_scale": 0.5}, "a dict"), ({}, "a dict"), (True, "True")])
def test_a_callback_that_returns_something_else_is_told(asked: Any, said: str) -> None:
    message = f"The callback 'a' returned {said}; expected a RunControl or None."
    with pytest.raises(PluginError, match=message):
        Callbacks({"a": Asks(asked)}).after_step(1, {})
    with pytest.raises(PluginError, match=message):
        Callbacks({"a": Asks(evaluation=asked)}).after_evaluation(1, {})


class Faulty(Callback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def after_step(self, step: int, metrics: Any) -> RunControl | None:
        raise self.error

    def state(self) -> Any:
        return {1, 2}


def test_a_fault_names_the_callback() -> None:
    with pytest.raises(PluginError, match="The callback 'a' failed: KeyError: 'loss'"):
        Callbacks({"a": Faulty(KeyError("loss"))}).after_step(1, {})
    with pytest.raises(PluginError, match="The callback 'a' failed: SystemExit: 9"):
        Callbacks({"a": Faulty(SystemExit(9))}).after_step(1, {})
    with pytest.raises(DataError, match="its own words"):
        Callbacks({"a": Faulty(DataError("its own words"))}).after_step(1, {})
    with pytest.raises(PluginError, match=r"The callback 'a' failed: TypeError: .*set"):
        Callbacks({"a": Faulty(KeyError())}).state()
