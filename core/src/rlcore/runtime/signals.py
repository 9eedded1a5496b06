"""SIGINT and SIGTERM: the first ends the run cleanly, wherever it waits."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType


class StopSignals:
    """Handlers for the time of a run.

    SIGTERM asks for a checkpoint at the next step boundary and an end (`terminating`); SIGINT, or a second
    SIGTERM, ends the run at once (`interrupted` is set).
    """

    def __init__(self) -> None:
        self.terminating = False
        self.interrupted = asyncio.Event()
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
        if number == signal.SIGTERM and not self.terminating:
            self.terminating = True
            return
        self._loop.call_soon_threadsafe(self.interrupted.set)
