"""How core asks the processes of a run: within a limit of time, and whether they are still there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping
from typing import TypeVar

import psutil

from rlcore.api.cluster import Actor, CallFailed
from rlcore.api.errors import WorkerError

BEAT_SECONDS = 2.0
"""Seconds between two signs of life of a watched process."""
_TICK_SECONDS = 0.5

T = TypeVar("T")


async def watched(actor: Actor, limit_s: float, flag: str) -> None:
    """Raises `CallFailed` when `actor` ends, or is silent for `limit_s` (which `flag` sets); never returns.

    Its method `watch` returns after `BEAT_SECONDS`, and raises where there is something to tell.
    """
    while True:
        beat = asyncio.ensure_future(actor.call("watch", thread="watch"))
        # Ticks are counted, not seconds: this process may have been stopped itself, by Ctrl-Z for example.
        left = math.ceil((BEAT_SECONDS + limit_s) / _TICK_SECONDS)
        try:
            while not (await asyncio.wait({beat}, timeout=_TICK_SECONDS))[0]:
                left -= 1
                if left <= 0:
                    raise CallFailed(
                        f"has given no sign of life for {limit_s:g} s ({flag}): its process is stopped, or "
                        "its host cannot be reached."
                    )
            beat.result()
        finally:
            beat.cancel()


async def watch_processes(processes: Mapping[str, int], limit_s: float) -> None:
    """`Cluster.watch` for `processes`: name → pid."""
    opened: dict[str, psutil.Process] = {}
    for name, pid in processes.items():
        try:
            opened[name] = psutil.Process(pid)
        except psutil.NoSuchProcess:  # before anybody watched it
            raise _ended(name) from None
    stopped = dict.fromkeys(processes, 0.0)
    while True:
        for name, process in opened.items():
            try:
                status = process.status()
            except psutil.NoSuchProcess:
                status = psutil.STATUS_DEAD
            if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                raise _ended(name)
            stopped[name] = stopped[name] + _TICK_SECONDS if status == psutil.STATUS_STOPPED else 0.0
            if stopped[name] >= limit_s:
                process.resume()  # who waits for it could not be ended
                raise WorkerError(f"{name} has been stopped for {limit_s:g} s (--worker-health-limit).")
        await asyncio.sleep(_TICK_SECONDS)


def _ended(name: str) -> WorkerError:
    return WorkerError(f"{name} has ended: its processes cannot go on.")


async def within(
    seconds: float | None, what: str, awaitable: Awaitable[T], late: str = "did not answer", flag: str = ""
) -> T:
    """The call's result; `WorkerError` where it fails or takes over `seconds` (None: no limit).

    `late`: what the sentence says that `what` did then. `flag`: the flag that sets the limit.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except CallFailed as error:
        raise WorkerError(f"{what} {error}") from error
    except TimeoutError:
        assert seconds is not None, "without a limit nothing takes too long"
        raise WorkerError(f"{what} {late} within {seconds:g} s{f' ({flag})' if flag else ''}.") from None
