"""`Trackers`: tells the run's trackers what happens, each in a thread of its own."""

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlcore.api.errors import faults_of, one_line
from rlcore.api.tracker import RunInfo, Tracker
from rlcore.api.types import Json, Sample
from rlcore.tracking.display import Display

_log = logging.getLogger(__name__)

WAITING = 200
"""Events that may wait for a slow tracker. Further ones are dropped, because samples take memory."""

END_SECONDS = 20.0
"""Seconds for all trackers together to finish at the end of a run."""

Event = Literal["start", "metrics", "evaluation", "rollout", "checkpoint", "end"]


class Trackers:
    """Tells every tracker, and the display, of each event, in order.

    Essential trackers are called at once, and their errors are raised. The others are called in threads of
    their own.
    """

    def __init__(self, trackers: Mapping[str, Tracker], display: Display) -> None:
        self._display = display
        self._essential = {name: tracker for name, tracker in trackers.items() if tracker.essential}
        self._threads = [
            _TrackerThread(name, tracker) for name, tracker in trackers.items() if not tracker.essential
        ]
        self._has_started = False

    def start(self, run: RunInfo) -> None:
        """The run begins, or goes on."""
        self._tell("start", run)
        self._has_started = True

    def metrics(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included."""
        row = dict(row)
        self._tell("metrics", int(row["step"]), row)
        self._display.step(row)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """The answers of the evaluation after `step`, by the name of the set."""
        self._tell("evaluation", step, samples)

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """The samples that `step` trained on."""
        self._tell("rollout", step, samples)

    def checkpoint(self, step: int, folder: Path) -> None:
        """The checkpoint of `step` is complete."""
        self._tell("checkpoint", step, folder)

    def last_checkpoint(self, step: int) -> None:
        """The run has nothing left to do but to complete the checkpoint of `step`."""
        self._display.phase(f"Waiting for the checkpoint of step {step}")

    def end(self, reason: str) -> None:
        """The run ends. Waits up to `END_SECONDS` for trackers that are still at work."""
        if not self._has_started:
            return
        deadline = time.monotonic() + END_SECONDS
        try:
            self._tell("end", reason)
        finally:
            for thread in self._threads:
                thread.join(deadline)

    def _tell(self, event: Event, *about: Any) -> None:
        for thread in self._threads:
            thread.tell(event, about)
        for name, tracker in self._essential.items():
            with faults_of(f"The tracker {name!r}"):
                getattr(tracker, event)(*about)


class _TrackerThread:
    """A tracker with a thread of its own. A slow one delays nothing; one that raises causes one warning."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._events: queue.Queue[tuple[Event, tuple[Any, ...]]] = queue.Queue()
        self._is_off = self._has_warned = False
        # daemon: one that hangs must not keep the process alive
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)

    def tell(self, event: Event, about: tuple[Any, ...]) -> None:
        """Put the event into the tracker's queue. Returns at once."""
        if event == "start":
            self._thread.start()
        if self._is_off:
            return
        if event != "end" and self._events.qsize() >= WAITING:
            self._warn(f"is {WAITING} events behind; what comes meanwhile is left out")
            return
        self._events.put((event, about))

    def join(self, deadline: float) -> None:
        """Wait until the tracker has handled every event, or until `deadline`."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._warn("is still at work at the end of the run, which does not wait for it")

    def _work(self) -> None:
        event: Event = "start"
        while event != "end" and not self._is_off:
            event, about = self._events.get()
            try:
                getattr(self._tracker, event)(*about)
            except (Exception, SystemExit) as error:
                self._is_off = event == "start"
                self._warn(f"failed at {event!r}: {one_line(error)}")

    def _warn(self, said: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("The tracker %r %s. The run goes on.", self._name, said)
