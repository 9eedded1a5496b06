"""What every tracker must fulfill, as a suite to subclass.

    class TestMyTracker(TrackerConformance):
        part = Part(name="post", factory="acme.post:Post", config=PostConfig())

It is told of small runs in folders of their own. One that talks to a server needs one that answers.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from rlcore.api.errors import UserError
from rlcore.api.tracker import RunInfo, Tracker
from rlcore_testing.conformance import Conformance, NotBuiltError
from rlcore_testing.rows import STEPS, evaluated, evaluation_row, idle_row, step_row

END_SECONDS = 20.0
"""What a run waits for its trackers at the end."""


class TrackerConformance(Conformance):
    """Subclass it as `Test…` and give `tracker` or `part`."""

    def tracker(self) -> Tracker:
        """A new instance. Raises `NotBuiltError` if the user must do something first, such as log in."""
        try:
            made: Tracker = self.part.build()
        except UserError as error:
            raise NotBuiltError(str(error)) from error
        return made

    # --- the properties --------------------------------------------------------------------------------

    def test_it_follows_a_whole_run(self) -> None:
        with _folder() as folder:
            tracker = self.tracker()
            _whole_run(tracker, folder)

    def test_it_goes_on_with_a_resumed_run(self) -> None:
        """Another process, the same folder: steps after the checkpoint are told again."""
        with _folder() as folder:
            _whole_run(self.tracker(), folder)
            resumed = self.tracker()
            resumed.start(_info(folder, step=2))
            for step in range(3, STEPS + 1):
                resumed.metrics(step, step_row(step))
            resumed.end("completed")

    def test_a_run_may_end_before_its_first_step(self) -> None:
        """Its first step failed: there is no metric."""
        with _folder() as folder:
            tracker = self.tracker()
            tracker.start(_info(folder))
            tracker.end("failed")

    def test_it_takes_any_value_of_a_metric(self) -> None:
        """Steps without training have few; some are no numbers, and a number may be no finite one."""
        odd = {"none": None, "text": "a", "yes": True, "nan": math.nan, "inf": math.inf}
        with _folder() as folder:
            tracker = self.tracker()
            tracker.start(_info(folder))
            tracker.metrics(1, idle_row(1))
            tracker.metrics(2, step_row(2) | {f"train/{name}": value for name, value in odd.items()})
            tracker.evaluation(2, {"empty": []})
            tracker.rollout(2, [])
            tracker.end("completed")

    def test_it_leaves_what_it_is_told_as_it_is(self) -> None:
        """Other trackers are told the same."""
        with _folder() as folder:
            tracker, row, samples = self.tracker(), step_row(1), evaluated(1)
            untouched = deepcopy((row, samples))
            tracker.start(_info(folder))
            tracker.metrics(1, row)
            tracker.evaluation(1, samples)
            tracker.rollout(1, samples["copy"])
            tracker.end("completed")
            assert (row, samples) == untouched, "it changed a row or a sample"

    def test_building_it_starts_nothing(self) -> None:
        """It is built before the run is known to start: no thread, no file."""
        with _folder() as folder:
            before, files = set(threading.enumerate()), sorted(folder.parent.rglob("*"))
            self.tracker()
            assert set(threading.enumerate()) <= before, "its factory starts a thread"
            assert sorted(folder.parent.rglob("*")) == files, "its factory writes a file"

    def test_it_does_not_hold_up_the_end_of_a_run(self) -> None:
        """`end` returns in time, and no thread of it keeps the process alive."""
        with _folder() as folder:
            before, begin = set(threading.enumerate()), time.monotonic()
            _whole_run(self.tracker(), folder)
            took = time.monotonic() - begin
            assert took < END_SECONDS, f"it took {took:.1f} s; a run waits {END_SECONDS:g} s at its end"
            new = set(threading.enumerate()) - before
            left = sorted(thread.name for thread in new if not thread.daemon)
            assert not left, f"a thread that is no daemon goes on after the end: {left[0]}"


def _whole_run(tracker: Tracker, folder: Path) -> None:
    tracker.start(_info(folder))
    for step in range(STEPS + 1):
        if step:
            tracker.rollout(step, evaluated(step)["copy"])
        if step % 2 == 0:
            tracker.evaluation(step, evaluated(step))
        row = step_row(step) if step else {"step": 0, "weight_version": 0}
        tracker.metrics(step, row | (evaluation_row(step) if step % 2 == 0 else {}))
    saved = folder / "checkpoints" / str(STEPS)
    saved.mkdir(parents=True, exist_ok=True)
    tracker.checkpoint(STEPS, saved)
    tracker.end("completed")


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path) / "run"
        folder.mkdir()
        yield folder


def _info(folder: Path, step: int = 0) -> RunInfo:
    settings = {
        "algo": "grpo",
        "steps": STEPS,
        "lr": 1e-3,
        "reward": ["exact_match"],
        "save_rollouts_every": 1,
    }
    return RunInfo(folder=folder, settings=settings, plugins={"core": "0.1.0"}, step=step)
