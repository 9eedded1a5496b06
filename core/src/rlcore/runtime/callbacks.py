"""`Callbacks`: calls the callbacks of a run, and combines what they ask for."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import SupportsFloat

from rlcore.api.callback import Callback, RunControl
from rlcore.api.errors import PluginError, described, faults_of, returned
from rlcore.api.types import Json
from rlcore.learning.settings import Scales


class Callbacks:
    """The callbacks by their names, in the order in which they are asked."""

    def __init__(self, callbacks: Mapping[str, Callback]) -> None:
        self._callbacks = dict(callbacks)
        self._scales = dict.fromkeys(self._callbacks, Scales())

    @property
    def scales(self) -> Scales:
        """The factors on settings of the next step."""
        scales = self._scales.values()
        return Scales(lr=math.prod(scale.lr for scale in scales), kl=math.prod(scale.kl for scale in scales))

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        """Call all of them after `step`; their wishes, taken together."""
        # A copy each: a callback may change what it is given.
        return self._ask(lambda callback: callback.after_step(step, dict(metrics)))

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        """Call all of them after the evaluation of `step`; their wishes, taken together."""
        return self._ask(lambda callback: callback.after_evaluation(step, dict(metrics)))

    def state(self) -> dict[str, Json]:
        """Everything that `load` needs, as JSON: a copy, for it is written while the run goes on."""
        states = {}
        for name, callback in self._callbacks.items():
            with faults_of(f"The callback {name!r}"):
                states[name] = json.loads(json.dumps(callback.state()))
        return {name: {"scales": asdict(self._scales[name]), "state": states[name]} for name in states}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken; callbacks that are new begin anew."""
        for name in self._callbacks.keys() & state.keys():
            self._scales[name] = Scales(**state[name]["scales"])
            with faults_of(f"The callback {name!r}"):
                self._callbacks[name].load(state[name]["state"])

    def _ask(self, call: Callable[[Callback], RunControl | None]) -> RunControl:
        combined = RunControl()
        for name, callback in self._callbacks.items():
            whose = f"The callback {name!r}"
            with faults_of(whose):
                said = call(callback)
            said = RunControl() if said is None else said
            wish = returned(whose, said, RunControl, "a RunControl or None")
            for setting in ("lr", "kl"):
                scale = getattr(wish, f"{setting}_scale")
                if scale is None:  # what the callback asked for last still holds
                    continue
                if not (isinstance(scale, SupportsFloat) and math.isfinite(scale) and float(scale) >= 0):
                    raise PluginError(
                        f"{whose} set {setting}_scale to {described(scale)}; expected a number of at least 0."
                    )
                self._scales[name] = replace(self._scales[name], **{setting: float(scale)})
            combined = both(combined, replace(wish, stop=wish.stop and f"{name}: {wish.stop}"))
        return combined


def both(first: RunControl, second: RunControl) -> RunControl:
    """What either asks for at the end of a step; of two reasons to stop, the first."""
    return RunControl(
        evaluate=first.evaluate or second.evaluate,
        save=first.save or second.save,
        stop=first.stop or second.stop,
    )
