"""SIGINT and SIGTERM: the first ends the run cleanly, wherever it waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from rlcore.api.errors import Terminated

INTERRUPTED, TERMINATED = "interrupted", "terminated"
"""Why a run ended at once: SIGINT or SIGTERM."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Until a run has an event loop, SIGTERM raises `Terminated`, as SIGINT raises KeyboardInterrupt."""
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated


class StopSignals:
    """Handlers for the time of a run.

    Once there is something to save (`can_save`), SIGTERM asks for a checkpoint at the next step boundary and
    an end (`terminating`). SIGINT, a second SIGTERM, or one that comes before, ends the run at once:
    `interrupted` is set, and `reason` says by what.
    """

    def __init__(self) -> None:
        self.can_save = False
        self.terminating = False
        self.interrupted = asyncio.Event()
        self.reason = INTERRUPTED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        if number == signal.SIGTERM and self.can_save and not self.terminating:
            self.terminating = True
            return
        self.reason = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        self._loop.call_soon_threadsafe(self.interrupted.set)
