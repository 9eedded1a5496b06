"""First requests that wait for each other, and one that is given up meanwhile."""

import asyncio

import pytest

from rlcore.rollout.context import StartBarrier

LIMIT_S = 5.0


async def joined(barrier: StartBarrier, found: list[str]) -> None:
    found.append(await barrier.join())
    await asyncio.sleep(0)
    found.append("went on")


async def test_who_is_cancelled_while_it_waits_is_not_counted() -> None:
    """A client that timed out: the engine waits for as many requests as there will be."""
    barrier, found = StartBarrier("round", 3), list[str]()
    tasks = [asyncio.create_task(joined(barrier, found)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert await asyncio.wait_for(barrier.join(), LIMIT_S) == "round/2"
    await tasks[1]
    assert found == ["round/2", "went on"]


async def test_who_is_cancelled_as_the_barrier_opens_is_cancelled_behind_it() -> None:
    """The others may have counted it: it ends where its request is, which tells the engine's client."""
    barrier, found = StartBarrier("round", 2), list[str]()
    task = asyncio.create_task(joined(barrier, found))
    await asyncio.sleep(0)
    barrier.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, LIMIT_S)
    assert found == ["round/1"]
