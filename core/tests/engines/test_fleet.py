"""Engines that stand in for one another: real `local` servers, of which all but one are lost."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from faults import LIMIT_S, check_whole, disturbed, turn

from rlcore import EngineClient, Request, Sampling, WeightsLocation
from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_local.testing import LOCAL
from rlcore_machine.tasks import together
from rlcore_testing.engine_server import HereLauncher
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

ENGINES = 4


class Once(HereLauncher):
    """Its server's replacement never comes."""

    async def start(self) -> EngineClient:
        """The first server."""
        if self.starts:
            await asyncio.Event().wait()
        return await super().start()


@pytest.fixture
def launchers(model: Path, tmp_path: Path, relay: Any) -> list[HereLauncher]:
    """The last but one is found through the relay."""
    fronts: list[Any] = [None] * ENGINES
    fronts[-2] = relay.lead_to
    return [Once(LOCAL, model, tmp_path, context_length=2000, front=front) for front in fronts]


@pytest.fixture
async def slots(launchers: list[HereLauncher], tmp_path: Path) -> AsyncIterator[list[SupervisedEngine]]:
    """All with the same weights, other than those that the servers start with."""
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32")
    health, spares = Health(every_s=0.5, limit_s=10.0), Spares(limit=ENGINES)
    made = [
        SupervisedEngine(f"Engine {index}", launcher, publisher, health=health, spares=spares)
        for index, launcher in enumerate(launchers)
    ]
    try:
        await asyncio.gather(*(slot.lifecycle.start() for slot in made))
        yield made
    finally:
        await asyncio.gather(*(slot.lifecycle.stop() for slot in made))


@pytest.mark.full
@pytest.mark.usefixtures("forked_servers")
async def test_what_lost_engines_leave_undone_is_done_by_the_last(
    slots: list[SupervisedEngine], launchers: list[HereLauncher], relay: Any, location: WeightsLocation
) -> None:
    faults: list[Callable[[], object]] = [
        lambda: launchers[0].server().send_signal(signal.SIGKILL),
        lambda: launchers[1].server().send_signal(signal.SIGSTOP),
        relay.black.set,
    ]
    await together(slot.load(location) for slot in slots)
    fleet = Fleet(slots)
    *lost, last = fleet.clients
    async with asyncio.timeout(LIMIT_S):
        undisturbed = await turn(last)
        answers = await asyncio.gather(*map(disturbed, lost, launchers, faults))
        for answer in answers:
            check_whole(answer, undisturbed)

        short = Request(input_ids=(5, 6), sampling=Sampling(max_tokens=4), seed=3)
        found = [await one.generate(short) for one in (*lost, last)]
        assert len({one.token_ids for (one,) in found}) == 1
        await together(one.abort() for one in lost)
    assert [launcher.starts for launcher in launchers] == [1] * ENGINES
    assert [slot.lifecycle.server is None for slot in slots] == [True, True, True, False]
