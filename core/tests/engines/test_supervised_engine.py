"""Engines that die, hang or cannot be reached any more: real `local` servers, really ended."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import LIMIT_S, check_whole, disturbed, turn

from rlcore import EngineClient, EngineError, RefusedError, Request, Sampling, WeightsLocation
from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_local.testing import LOCAL
from rlcore_testing.engine_server import HereLauncher
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

FAULTS = 5


@dataclass(frozen=True, kw_only=True)
class Interrupted(SharedMemoryPublisher):
    """Each of `faults` comes in the midst of a publication, one in each."""

    faults: list[Callable[[], object]] = field(default_factory=list)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if self.faults:
            self.faults.pop()()
        return await super()._send(client, location)


@pytest.fixture
def launcher(model: Path, tmp_path: Path, relay: Any) -> HereLauncher:
    """Of servers that are found through the relay."""
    return HereLauncher(LOCAL, model, tmp_path, context_length=2000, front=relay.lead_to)


@pytest.fixture
def publisher(tmp_path: Path) -> Interrupted:
    """Uninterrupted so far."""
    return Interrupted(root=tmp_path, dtype="fp32")


@pytest.fixture
async def slot(launcher: HereLauncher, publisher: Interrupted) -> AsyncIterator[SupervisedEngine]:
    """An engine that may be replaced as often as there are faults."""
    health, spares = Health(every_s=0.5, limit_s=6.0), Spares(limit=FAULTS)
    made = SupervisedEngine("Engine 0", launcher, publisher, health=health, spares=spares)
    try:
        await made.lifecycle.start()
        yield made
    finally:
        await made.lifecycle.stop()


@pytest.mark.full
@pytest.mark.usefixtures("forked_servers")
async def test_a_lost_server_is_replaced_and_nobody_notices(
    slot: SupervisedEngine,
    launcher: HereLauncher,
    relay: Any,
    publisher: Interrupted,
    location: WeightsLocation,
) -> None:
    def hang() -> None:
        launcher.server().send_signal(signal.SIGSTOP)

    faults: dict[str, Callable[[], object]] = {
        "killed": lambda: launcher.server().send_signal(signal.SIGKILL),
        "hangs": hang,
        "black-holed": relay.black.set,
    }
    await slot.load(location)
    (engine,) = Fleet([slot]).clients
    undisturbed = await turn(engine)
    for count, (name, fault) in enumerate(faults.items(), start=2):
        processes = launcher.processes()
        answers = await disturbed(engine, launcher, fault)
        check_whole(answers, undisturbed)
        assert launcher.starts == count, name
        psutil.wait_procs(processes, timeout=LIMIT_S)
        assert not any(process.is_running() for process in processes), name
    assert {span.version for group in undisturbed for one in group for span in one.spans} == {
        location.version
    }

    publisher.faults.extend([hang, hang])  # of the server that serves, and of the next one before it does
    newer = replace(location, version=location.version + 1)
    await asyncio.wait_for(slot.load(newer), LIMIT_S)
    assert launcher.starts == 1 + FAULTS
    assert await slot.requests.weight_version() == newer.version

    with pytest.raises(RefusedError):  # a refusal is an answer, and costs no server
        await engine.generate(Request(input_ids=(10**6,), sampling=Sampling(max_tokens=1)))

    launcher.server().kill()
    said = rf"Engine 0 is lost, and the run has used up its --engine-replacements {FAULTS}: .*exit code 137"
    for ask in (turn(engine), slot.load(location), slot.lifecycle.watch()):
        with pytest.raises(EngineError, match=said):
            await asyncio.wait_for(ask, LIMIT_S)
    assert launcher.starts == 1 + FAULTS
