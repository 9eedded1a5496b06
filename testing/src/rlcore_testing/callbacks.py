"""What every callback must fulfill, as a suite to subclass.

class TestMyCallback(CallbackConformance):
    part = Part(name="nap", factory="acme.nap:Nap", config=NapConfig(after_hours=8))
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from rlcore.api.callback import Callback, RunControl
from rlcore.api.types import Json
from rlcore_testing.conformance import Conformance, same
from rlcore_testing.rows import STEPS, evaluation_row, idle_row, step_row

Asked = RunControl | None


class CallbackConformance(Conformance):
    """Subclass it as `Test…` and give `callback` or `part`."""

    def callback(self) -> Callback:
        """A new instance."""
        made: Callback = self.part.build()
        return made

    def rows(self) -> Mapping[int, Mapping[str, Json]]:
        """The rows of `metrics.jsonl` by step. What the callback looks at must be in them."""
        return {step: step_row(step) for step in range(1, STEPS + 1)}

    def evaluations(self) -> Mapping[int, Mapping[str, Json]]:
        """What evaluations found, by step; 0 is before the training."""
        return {step: evaluation_row(step) for step in range(0, STEPS + 1, 2)}

    # --- the properties --------------------------------------------------------------------------------

    def test_it_asks_for_what_a_run_can_do(self) -> None:
        """Nothing, or a `RunControl` whose scales are numbers of at least 0."""
        for step, asked in self._run(self.callback()):
            if asked is None:
                continue
            assert isinstance(asked, RunControl), f"step {step}: it gave {asked!r}"
            assert isinstance(asked.stop, str), f"step {step}: stop is {asked.stop!r}, expected why"
            for name in ("lr_scale", "kl_scale"):
                scale = getattr(asked, name)
                fits = scale is None or (math.isfinite(scale) and scale >= 0)
                assert fits, f"step {step}: {name} is {scale}"

    def test_it_says_the_same_again(self) -> None:
        """Another instance that sees the same rows: a run of the same seed is the same run."""
        same(list(self._run(self.callback())), list(self._run(self.callback())), "built anew, the answers")

    def test_a_resumed_run_is_steered_as_the_other_would_have_been(self) -> None:
        """From any step on; its state is JSON."""
        for last in range(1, STEPS):
            whole, resumed = self.callback(), self.callback()
            list(self._run(whole, end=last))
            state = whole.state()
            try:
                kept = json.loads(json.dumps(state))
            except (TypeError, ValueError) as error:
                raise AssertionError(f"its state is no JSON: {error}") from error
            resumed.load(kept)
            again, expected = (list(self._run(callback, begin=last + 1)) for callback in (resumed, whole))
            same(again, expected, f"resumed after step {last}, the answers")

    def test_it_leaves_the_metrics_as_they_are(self) -> None:
        """The trackers get the same row."""
        callback = self.callback()
        for call, rows in self._calls(callback):
            for step, row in rows.items():
                given = dict(deepcopy(row))
                call(step, given)
                assert given == row, f"step {step}: it changed the metrics"

    def test_a_step_that_trained_nothing_does_not_stop_it(self) -> None:
        """All groups may be dropped, at first or on the way: most metrics are absent then."""
        self.callback().after_step(1, idle_row(1))
        callback = self.callback()
        list(self._run(callback))
        callback.after_step(STEPS + 1, idle_row(STEPS + 1))

    def test_it_is_asked_of_nothing_before_the_first_step(self) -> None:
        """A run that is saved at once has a state, which another callback takes."""
        callback = self.callback()
        callback.load(json.loads(json.dumps(self.callback().state())))
        same(list(self._run(callback)), list(self._run(self.callback())), "with a fresh state, the answers")

    # --- how they are checked --------------------------------------------------------------------------

    def _calls(
        self, callback: Callback
    ) -> list[tuple[Callable[[int, Any], Asked], Mapping[int, Mapping[str, Json]]]]:
        return [(callback.after_step, self.rows()), (callback.after_evaluation, self.evaluations())]

    def _run(self, callback: Callback, begin: int = 0, end: int = STEPS) -> Iterator[tuple[int, Asked]]:
        """What it asks for after each step and evaluation, in their order."""
        for step in range(begin, end + 1):
            for call, rows in self._calls(callback):
                if step in rows:
                    yield step, call(step, dict(rows[step]))
