"""`Callbacks`: what the callbacks of a run ask for, taken together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

from rlcore.api.callback import Callback, RunControl
from rlcore.api.errors import PluginError, faults_of
from rlcore.api.types import Json


class Callbacks:
    """The callbacks by their names, in the order in which they are asked."""

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._scales = dict.fromkeys(self._callbacks, 1.0)

    @property
    def lr_scale(self) -> float:
        """What the learning rate of the next step is multiplied by."""
        return math.prod(self._scales.values())

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        """What all of them ask for after `step`."""
        return self._ask(lambda callback: callback.after_step(step, dict(metrics)))

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        """What all of them ask for after the evaluation of `step`."""
        return self._ask(lambda callback: callback.after_evaluation(step, dict(metrics)))

    def state(self) -> dict[str, Json]:
        """Everything that `load` needs, as JSON: a copy, for it is written while the run goes on."""
        states = {}
        for name, callback in self._callbacks.items():
            with faults_of(f"The callback {name!r}"):
                states[name] = json.loads(json.dumps(callback.state()))
        return {name: {"lr_scale": self._scales[name], "state": states[name]} for name in states}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken; callbacks that are new begin anew."""
        for name in self._callbacks.keys() & state.keys():
            self._scales[name] = float(state[name]["lr_scale"])
            with faults_of(f"The callback {name!r}"):
                self._callbacks[name].load(state[name]["state"])

    def _ask(self, call: Callable[[Callback], RunControl | None]) -> RunControl:
        every = RunControl()
        for name, callback in self._callbacks.items():
            with faults_of(f"The callback {name!r}"):
                asked = call(callback) or RunControl()
            if asked.lr_scale is not None:
                self._scales[name] = _checked(name, asked.lr_scale)
            every = RunControl(
                evaluate=every.evaluate or asked.evaluate,
                save=every.save or asked.save,
                stop=every.stop or (asked.stop and f"{name}: {asked.stop}"),
            )
        return every


def _checked(name: str, scale: float) -> float:
    if not (math.isfinite(scale) and scale >= 0):
        raise PluginError(
            f"The callback {name!r} asked for the lr_scale {scale}; expected a number of at least 0."
        )
    return float(scale)
