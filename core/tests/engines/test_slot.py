"""Engines that die, hang or cannot be reached any more: real `local` servers, really ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from rlcore.engines.client import EngineClient, together
from rlcore.engines.client_http import RefusedError
from rlcore.engines.process import free_port
from rlcore.engines.publish import SharedMemoryPublisher
from rlcore.engines.publish_file import Location, write_version
from rlcore.engines.slot import EngineSlot, Health, Spares
from rlcore.errors import EngineError
from rlcore.interfaces import Completion
from rlcore.testing.engine_server import TOKEN, HereLauncher
from rlcore.types import Sampling
from rlcore_qwen.tiny import tiny

MEMBERS = 6
FAULTS = 3
LIMIT_S = 280.0
VERSION = 7


class Relay:
    """A TCP port in front of a server's, through which nothing comes any more once it is `black`."""

    def __init__(self) -> None:
        self.black = asyncio.Event()
        self.port = free_port()
        self._target = 0
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def lead_to(self, url: str) -> str:
        """The URL at which the server of `url` is found from now on."""
        self._target = int(url.rpartition(":")[2])
        self.black.clear()
        if self._server is None:
            self._server = await asyncio.start_server(self._join, "127.0.0.1", self.port)
        return f"http://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """End it, with every connection."""
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        if self._server is not None:
            self._server.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._lines.add(asyncio.create_task(self._carry_both(reader, writer)))

    async def _carry_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await self._wait_if_black()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(back):
                await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._wait_if_black()
            sink.write(data)
        sink.close()

    async def _wait_if_black(self) -> None:
        if self.black.is_set():
            await asyncio.Event().wait()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model without an end token, whose responses last."""
    path = tiny(tmp_path / "model", seed=0)
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**settings, "eos_token_id": None}))
    return path


@pytest.fixture
def location(tmp_path: Path) -> Location:
    """Other weights than those that servers start with."""
    tensors = load_file(tiny(tmp_path / "other", seed=1) / "model.safetensors")
    return write_version(tmp_path, tensors.items(), VERSION, dtype="fp32")


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """What stands between client and server."""
    made = Relay()
    yield made
    await made.close()


@pytest.fixture
def launcher(model: Path, tmp_path: Path, relay: Relay) -> HereLauncher:
    """Of servers that are found through the relay."""
    return HereLauncher(model, tmp_path, context_length=2000, front=relay.lead_to)


@pytest.fixture
async def slot(launcher: HereLauncher, tmp_path: Path) -> AsyncIterator[EngineSlot]:
    """An engine that may be replaced as often as there are faults."""
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32")
    health, spares = Health(every_s=0.5, limit_s=6.0), Spares(limit=FAULTS)
    made = EngineSlot("Engine 0", launcher, publisher, health=health, spares=spares)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


async def turn(slot: EngineSlot) -> list[list[Completion]]:
    """One session: every other request is short, the rest last until they are disturbed."""
    return await together(
        slot.generate(
            range(2, 5 + number),
            Sampling(max_tokens=3 if number % 2 else 500),
            n=2,
            seed=number,
            rid=f"r{number}",
            session=f"1/{MEMBERS}",
        )
        for number in range(MEMBERS)
    )


async def disturbed(
    slot: EngineSlot, launcher: HereLauncher, fault: Callable[[], object]
) -> list[list[Completion]]:
    """The answers of a turn; `fault` comes when the short requests are answered and the others are not."""
    async with EngineClient(launcher.url, TOKEN) as beside, asyncio.timeout(LIMIT_S):
        before = (await beside.server_info())["requests"]["finished"]
        work = asyncio.create_task(turn(slot))
        while (await beside.server_info())["requests"]["finished"] < before + MEMBERS:
            assert not work.done(), work
        fault()
        assert not work.done(), "the turn was over before it could be disturbed"
        return await work


async def test_a_lost_server_is_replaced_and_nobody_notices(
    slot: EngineSlot, launcher: HereLauncher, relay: Relay, location: Location
) -> None:
    faults: dict[str, Callable[[], object]] = {
        "killed": lambda: launcher.server().send_signal(signal.SIGKILL),
        "hangs": lambda: launcher.server().send_signal(signal.SIGSTOP),
        "black-holed": relay.black.set,
    }
    await slot.load(location)
    undisturbed = await turn(slot)
    for count, (name, fault) in enumerate(faults.items(), start=2):
        processes = launcher.processes()
        answers = await disturbed(slot, launcher, fault)
        assert answers == undisturbed, (
            name
        )  # tokens, log-probs to the last bit, and the version of the weights
        assert launcher.starts == count, name
        psutil.wait_procs(processes, timeout=LIMIT_S)
        assert not any(process.is_running() for process in processes), name
    assert {span.version for group in undisturbed for one in group for span in one.spans} == {VERSION}

    with pytest.raises(RefusedError):  # a refusal is an answer, and costs no server
        await slot.generate([10**6], Sampling(max_tokens=1), n=1, seed=0, rid="r", session=None)
    assert await slot.weight_version() == VERSION

    launcher.server().kill()
    said = rf"Engine 0 is lost, and the run has used up its --engine-replacements {FAULTS}: .*exit code 137"
    for ask in (turn(slot), slot.load(location), slot.watch()):
        with pytest.raises(EngineError, match=said):
            await asyncio.wait_for(ask, LIMIT_S)
    assert launcher.starts == 1 + FAULTS
