"""Waiting for what other processes do."""

import time
from collections.abc import Callable

import psutil


def eventually(check: Callable[[], object], limit_s: float = 60.0) -> None:
    """`check()` becomes true within the limit."""
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def gone(*pids: int) -> bool:
    """Whether each of these processes has ended; who reaps it does not matter."""
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
