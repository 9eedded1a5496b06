"""Producer and consumer: turns, staleness, resume."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from rollout_world import KeepOdd, World, ids

from rlcore import EngineError, Group

LIMIT_S = 30.0


def oldest(group: Group) -> int:
    return min(version for sample in group.samples for version in sample.versions)


def timeless(metrics: Any) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


async def test_resume_continues_where_it_was() -> None:
    world = World(prompts=7, filters=[KeepOdd()])
    await world.producer.rollout(1)
    state = json.loads(json.dumps(world.producer.state()))
    resumed = world.new_producer()
    resumed.load(state)
    expected = await world.producer.rollout(2)
    found = await resumed.rollout(2)
    assert found.groups == expected.groups
    assert timeless(found.metrics) == timeless(expected.metrics)


async def test_synchronous_run_generates_nothing_between_two_questions() -> None:
    world = World()
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(2, 5)) as rollouts:
        steps = []
        async for rollout in rollouts:
            steps.append((rollout.step, rollout.version))
            asked = len(world.engine.asked)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(world.engine.asked) == asked == 4 * len(steps)
            assert world.producer.state()["buffer"] == {"draws": [], "groups": []}
            world.publish(rollout.version + 1)
    assert steps == [(3, 0), (4, 1), (5, 2)]


async def test_run_raises_the_producers_error() -> None:
    world = World()
    world.engine.endings["5.0-0"] = world.dead()
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        with pytest.raises(EngineError, match="cannot be reached"):
            await anext(rollouts)


async def test_an_early_end_gives_the_prompts_back() -> None:
    world = World(max_staleness=1)
    world.engine.hold, world.engine.held = asyncio.Event(), ("4.", "5.", "6.", "7.")
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 5)) as rollouts:
        await anext(rollouts)
        while len(world.engine.asked) < 8:
            await asyncio.sleep(0)
    draws = world.producer.state()["buffer"]["draws"]
    assert [draw["group_id"] for draw in draws] == [4, 5, 6, 7]


@pytest.mark.parametrize("staleness", [1, 2])
async def test_staleness_is_a_number(staleness: int) -> None:
    world = World(prompts=100, max_staleness=staleness)
    seen: list[int] = []
    async with asyncio.timeout(LIMIT_S), aclosing(world.producer.run(0, 8)) as rollouts:
        async for rollout in rollouts:
            seen += ids(rollout)
            version = rollout.step - 1
            assert rollout.version == version
            assert rollout.metrics["rollout/samples"] == 4 * 3
            assert max(0, version - staleness) <= min(map(oldest, rollout.groups))
            ahead = 4 * min(rollout.step + staleness, 8)
            while len(world.engine.asked) < ahead:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(world.engine.asked) == ahead
            world.publish(rollout.step)
    assert seen == list(range(32)), "no prompt is lost or doubled"
