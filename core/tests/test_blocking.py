"""Blocking calls in an event loop."""

import asyncio

import pytest

from rlcore.blocking import call_in_thread


async def test_what_ends_the_thread_is_told() -> None:
    def leave() -> None:
        raise SystemExit(3)

    async with asyncio.timeout(30.0):
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await call_in_thread(leave)
