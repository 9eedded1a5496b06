"""How the threads of a process share the interpreter, and how many compute."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SWITCH_S = 0.0005


def switch_threads_often() -> None:
    """Call it in a process whose event loop has threads beside it that run Python.

    A thread that wants the interpreter then waits for `SWITCH_S` at most. Python's default is 5 ms, longer
    than a request to an engine takes: the driver and the engine `local` each save some percent of a short
    step. Threads that tokenise or compute then hold up no event loop.
    """
    sys.setswitchinterval(SWITCH_S)


@contextmanager
def when_slow(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """A block that takes longer than `seconds` has `call` called once, from a thread and while it lasts."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # what runs next may fork


def compute_threads(count: int) -> None:
    """Have torch compute in `count` threads; call it in place of `torch.set_num_threads`.

    Before oneMKL 2025.0, the first vector function of a process (cos, exp, log, …) finds out about the
    processor and leaves the finding half-written for a moment. A second thread that reads it then takes the
    kernel of low accuracy: a part of that one result is off by 1e-4
    (https://github.com/pytorch/pytorch/issues/188792). A single number is computed by one thread.
    """
    import torch

    torch.ones(1).cos()
    torch.set_num_threads(count)
