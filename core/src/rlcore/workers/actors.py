"""How core asks the processes of a run: within a limit of time, and whether they are still there."""

import asyncio
import math
from collections.abc import Awaitable
from typing import TypeVar

from rlcore.api.cluster import Actor, CallFailed
from rlcore.api.errors import WorkerError

BEAT_SECONDS = 2.0
"""Seconds between two signs of life of a watched process."""
FIRST_SECONDS = 60.0
"""Seconds more for the first sign of life: a new process imports what it needs."""
_TICK_SECONDS = 0.5

T = TypeVar("T")


async def watched(actor: Actor, limit_s: float, flag: str, more: float = 0.0) -> None:
    """Raises `CallFailed` when `actor` ends, or is silent for `limit_s` (which `flag` sets); never returns.

    `more`: seconds more for the first sign.
    Its method `watch` returns after `BEAT_SECONDS`, and raises where there is something to tell.
    """
    while True:
        beat = asyncio.ensure_future(actor.call("watch", thread="watch"))
        # Ticks are counted, not seconds: this process may have been stopped itself, by Ctrl-Z for example.
        left = math.ceil((BEAT_SECONDS + limit_s + more) / _TICK_SECONDS)
        try:
            while not (await asyncio.wait({beat}, timeout=_TICK_SECONDS))[0]:
                left -= 1
                if left <= 0:
                    raise CallFailed(
                        f"has given no sign of life for {limit_s + more:g} s ({flag}): its process is "
                        "stopped, or its host cannot be reached."
                    )
            beat.result()
            more = 0.0
        finally:
            beat.cancel()


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
