"""Code that holds up an event loop, by its place."""

import asyncio
import contextlib
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from types import FrameType

LOOK_S = 1.0
"""Seconds between two looks."""


@contextlib.contextmanager
def stalls_told(tell: Callable[[float, str], None], limit_s: float) -> Iterator[None]:
    """Within, `tell` gets `limit_s` and a place whenever code has held up the running loop for so long.

    It is called in a thread of its own, once for each time: `work.py, line 12, in answer`.
    """
    loop, main, over = asyncio.get_running_loop(), threading.get_ident(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            heard = threading.Event()
            with contextlib.suppress(RuntimeError):  # it is closed: the next look ends this
                loop.call_soon_threadsafe(heard.set)
            if heard.wait(limit_s) or heard.wait(
                LOOK_S
            ):  # once more, for a process that was stopped as a whole
                continue
            if (frame := sys._current_frames().get(main)) is not None and not over.is_set():
                tell(limit_s, _place(frame))
            while not heard.wait(LOOK_S) and not over.is_set():
                pass

    threading.Thread(target=watch, name="stalls", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _place(frame: FrameType) -> str:
    """The place of the innermost code that is not of Python itself: who sleeps, rather than how."""
    library = sysconfig.get_path("stdlib")
    caller: FrameType | None = frame
    while caller is not None and (file := caller.f_code.co_filename).startswith((library, "<")):
        if "site-packages" in file:
            break
        caller = caller.f_back
    code = (caller or frame).f_code
    return f"{code.co_filename}, line {(caller or frame).f_lineno}, in {code.co_name}"
