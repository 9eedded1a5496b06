"""Threads beside an event loop, for calls that block."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def call_in_thread(function: Callable[[], T]) -> T:
    """`function()` in a thread of its own. A pool of threads could fill up with calls that hang.

    After a cancellation the thread runs on until it returns, since Python cannot end a thread. It delays
    neither the event loop nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # nobody waits any more
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = function()
        except StopIteration as raised:  # a future takes none
            error = RuntimeError(f"StopIteration: {raised}")
        except Exception as raised:
            error = raised
        except BaseException as raised:  # `SystemExit` too: whoever waits must be answered
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="blocking call").start()
    result: T = await future
    return result
