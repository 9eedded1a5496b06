"""SIGINT, SIGTERM and SIGHUP: the first ends a program cleanly, wherever it waits.

While it ends further ones do nothing, so that the process can say its last line; one that comes a minute
after the first ends the process where it stands.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import asyncio

END_LIMIT_S = 60.0
"""Seconds that the end of a program may take before another signal cuts it short."""
GRACE_S = 20.0
"""What a program that is told to end waits for the work at hand: who kills it often gives it 30 s."""
HELD_UP_S = 1.0
"""Seconds after which an event loop that has not heard of the first signal is held up."""
_ending_since = 0.0

INTERRUPTED, TERMINATED = "interrupted", "terminated"
"""Why a program ended at once: SIGINT or SIGTERM."""


class Terminated(BaseException):
    """SIGTERM, where there was nothing to save: what KeyboardInterrupt is to SIGINT."""


def end_process(code: int) -> NoReturn:
    """End this process with its exit functions run and its output written, but without taking Python apart.

    A library whose threads outlive the interpreter crashes there.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Terminated`, SIGINT KeyboardInterrupt: until there is an event loop."""
    before = {number: signal.signal(number, _raise) for number in _handled()}
    try:
        yield
    finally:
        # A process that is about to end keeps ignoring signals.
        if signal.getsignal(signal.SIGINT) is not _late:
            for number, handler in before.items():
                signal.signal(number, handler)


def _handled() -> list[signal.Signals]:
    return [signal.SIGINT, *terminating()]


def _ignore() -> None:
    """Ignore further signals, since the process is about to end."""
    global _ending_since
    _ending_since = time.monotonic()
    for number in _handled():
        signal.signal(number, _late)


def _late(number: int, frame: FrameType | None) -> None:
    """End the process at once, and with it everything that the run has started."""
    if time.monotonic() - _ending_since > END_LIMIT_S:
        os._exit(128 + number)


def terminating() -> list[signal.Signals]:
    """The signals that ask a program to save and to end. Whoever ignores SIGHUP, as `nohup` does, goes on."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


def _raise(number: int, frame: FrameType | None) -> None:
    _leave_terminal(number)
    _ignore()
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _leave_terminal(number: int) -> None:
    """After SIGHUP the terminal is gone, and whatever is written to it an error."""
    if number != signal.SIGHUP:
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)


class StopSignals:
    """Handlers for the time of an event loop.

    Once there is something to save (`can_save`), SIGTERM or SIGHUP asks for a checkpoint at the next step
    boundary and an end (`told_to_end`). SIGINT, a second of the others, or one that comes before, ends the
    run at once: `interrupted` is set, and `reason` says by what. Once it has ended so, more do nothing.

    Code that holds up the event loop keeps it from hearing that. So one more signal, a second later, raises
    KeyboardInterrupt or `Terminated` in that very code.
    """

    def __init__(self) -> None:
        import asyncio

        self.can_save = False
        self.told_to_end = asyncio.Event()
        self.interrupted = asyncio.Event()
        self.reason = INTERRUPTED
        self._asked_at: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, object] = {}

    @property
    def terminating(self) -> bool:
        """Whether the run saves at the next step boundary, and ends."""
        return self.told_to_end.is_set()

    def __enter__(self) -> StopSignals:
        import asyncio

        self._loop = asyncio.get_running_loop()
        for number in _handled():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self.interrupted.is_set() or self.terminating:
            _ignore()
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned

    def _handle(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        _leave_terminal(number)
        if number != signal.SIGINT and self.can_save and not self.terminating:
            self.told_to_end.set()
            self._loop.call_soon_threadsafe(lambda: None)  # a loop that waits for its sockets is woken
            return
        self.reason = INTERRUPTED if number == signal.SIGINT else TERMINATED
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        elif not self.interrupted.is_set() and time.monotonic() - self._asked_at > HELD_UP_S:
            self.interrupted.set()
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        # Threadsafe, though it is the same thread, for the same reason.
        self._loop.call_soon_threadsafe(self.interrupted.set)
