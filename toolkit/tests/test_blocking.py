"""Blocking calls in an event loop."""

import asyncio

import pytest

from rlcore_toolkit import call_in_thread


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(3)])
async def test_what_no_future_takes_is_told(error: BaseException) -> None:
    def leave() -> None:
        raise error

    async with asyncio.timeout(30.0):
        with pytest.raises(RuntimeError, match=f"{type(error).__name__}: 3"):
            await call_in_thread(leave)
