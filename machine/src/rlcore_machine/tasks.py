"""Several tasks of one event loop: all of them, the first that ends, and their end."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
CANCEL_AGAIN_S = 15.0
"""Seconds until a cancelled task is cancelled again: it may have swallowed that, or still tidy up."""

T = TypeVar("T")


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, in order; at the first failure the rest is canceled and awaited."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        if tasks:  # `gather` would not be canceled before they are
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        return [task.result() for task in tasks if task.done()]  # they all are, or one has failed
    except BaseException:
        await end_tasks(tasks)
        raise


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel all, and those anew that swallow it: returns when they have ended, however."""
    tasks = list(tasks)
    left = {task for task in tasks if not task.done()}
    is_cancelled = False
    while left:
        for task in left:
            task.cancel()
        try:
            _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        except asyncio.CancelledError:  # raised at the end: the tasks must not outlive this call
            is_cancelled = True
            continue
        if left:
            _log.warning("%d tasks go on, %g s after they were cancelled.", len(left), CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen
    if is_cancelled:
        raise asyncio.CancelledError


async def until(event: asyncio.Event, work: Awaitable[T], grace_s: float = 0.0) -> T | None:
    """What `work` returns; None where it is given up, `grace_s` seconds after `event`."""

    async def over() -> None:
        await event.wait()
        await asyncio.sleep(grace_s)

    task = asyncio.ensure_future(work)
    await first([task, over()])
    return None if task.cancelled() else task.result()


async def first(awaitables: Iterable[Awaitable[object]]) -> None:
    """Returns when one of them has; raises what it raises. The others are canceled.

    Where several end at the same time, the error of the first in their order counts.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await end_tasks(tasks)
