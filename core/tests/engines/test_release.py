"""Memory that an engine gives to the trainer: the order of the calls, and a server that is lost meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from safetensors.torch import load_file

from rlcore import EngineClient, EngineError, Request, Sampling, Span, WeightsLocation
from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.stream import OutdatedError, Pieces, WeightStream
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_local.process import start
from rlcore_local.server import make_app
from rlcore_local.settings import Settings
from rlcore_qwen.tiny import tiny
from rlcore_toolkit import write_version
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher

TOKEN = "secret"
LIMIT_S = 120.0
RELEASED = ["/flush_cache", "/release_memory_occupation"]
LOADED_IDLE = ["/update_weights_from_shared_memory", "/weights_checker"]
LOADED = [
    "/pause_generation",
    "/update_weights_from_shared_memory",
    "/flush_cache",
    "/weights_checker",
    "/continue_generation",
]
RESUMED = "/resume_memory_occupation"


class Launcher:
    """One `local` server in this process, which stands for all that a slot starts.

    `calls`: what it was told, in order, with the tags of its memory. `lost`: set to lose it.
    """

    def __init__(self, url: str, calls: list[Any]) -> None:
        self.url = url
        self.calls = calls
        self.lost = asyncio.Event()

    async def start(self) -> EngineClient:
        self.lost.clear()
        self.calls.append("started")
        return EngineClient(self.url, TOKEN, timeout_s=60.0)

    async def died(self) -> str:
        await self.lost.wait()
        return "it was pulled out"

    async def stop(self) -> None:
        self.calls.append("stopped")


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[Launcher]:
    calls: list[Any] = []

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.method == "POST":
            tags = (await request.json()).get("tags")
            calls.append((request.path, *tags) if request.path == RESUMED else request.path)
        response: web.StreamResponse = await handler(request)
        return response

    settings = Settings(model_path=tiny(tmp_path / "model", seed=0), weights_dir=tmp_path, threads=1)
    service = await start(settings, asyncio.get_running_loop())
    app = make_app(service, TOKEN)
    app.middlewares.append(note)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Launcher(f"http://127.0.0.1:{runner.addresses[0][1]}", calls)
    finally:
        await runner.cleanup()
        await service.call(lambda: None)  # by then, what was under way is answered


async def test_released_before_training_and_taken_again_around_the_weights(
    launcher: Launcher, tmp_path: Path
) -> None:
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32")
    first, second = (write_version(tmp_path, tensors.items(), version, dtype="fp32") for version in (1, 2))
    health, spares = Health(every_s=600.0, limit_s=60.0), Spares(limit=1)
    slot = SupervisedEngine("Engine 0", launcher, publisher, health=health, spares=spares)
    (engine,) = Fleet([slot]).clients
    calls = launcher.calls
    async with asyncio.timeout(LIMIT_S):
        await slot.lifecycle.start()
        for _ in range(2):  # the second time it has nothing left to give
            await slot.drain()
            await slot.release()
        assert calls == ["started", *RELEASED]
        await slot.load(first)
        assert calls[3:] == [(RESUMED, "weights"), *LOADED_IDLE]
        await slot.resume()
        assert calls[-1] == (RESUMED, "kv_cache", "cuda_graph")
        (one,) = await engine.generate(Request(input_ids=(4, 5), sampling=Sampling(max_tokens=2)))
        assert one.spans == (Span(start=0, version=1),)

        await slot.release("kv_cache")
        await slot.resume()
        assert calls[-1] == (RESUMED, "kv_cache")

        await slot.release()
        calls.clear()
        launcher.lost.set()
        await slot.lifecycle.settle()
        await slot.load(second)
        await asyncio.sleep(0.1)
        assert calls == ["stopped"]  # the trainer has the memory
        await slot.resume()
        assert calls == ["stopped", "started", *LOADED]
        assert await slot.requests.weight_version() == 2
    await slot.lifecycle.stop()


async def test_a_replacement_gets_what_the_trainer_has(launcher: Launcher, tmp_path: Path) -> None:
    """The trainer is at the next version when the server is lost: its replacement waits for that one."""
    tensors = list(load_file(tmp_path / "model" / "model.safetensors").items())
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="fp32", bucket_bytes=20_000)
    at, weights_lock = 1, asyncio.Lock()

    def streamed(version: int) -> WeightsLocation:
        async def source(_ranks: Sequence[int]) -> Pieces:
            if version != at:
                raise OutdatedError("others")
            # As in the trainer, a stream begins when the one before it is closed: both use one file.
            async with weights_lock:
                with closing(publisher.pieces(tensors, sends=True, tells=True)) as made:
                    for piece in made:
                        yield piece

        location = publisher.write((), version)
        return replace(location, stream=WeightStream(source, 1))

    health, spares = Health(every_s=600.0, limit_s=60.0), Spares(limit=2)
    slot = SupervisedEngine("Engine 0", launcher, publisher, health=health, spares=spares)
    calls = launcher.calls
    async with asyncio.timeout(LIMIT_S):
        await slot.lifecycle.start()
        await slot.load(streamed(1))
        assert calls.count("/update_weights_from_shared_memory") > 3
        await slot.drain()
        await slot.release("kv_cache")
        await slot.resume()
        calls.clear()
        launcher.lost.set()  # the trainer rests, and has version 1
        await slot.lifecycle.settle()
        assert await slot.requests.weight_version() == 1
        assert calls[:4] == ["stopped", "started", "/release_memory_occupation", LOADED_IDLE[0]]
        assert calls[-1] == (RESUMED, "kv_cache", "cuda_graph"), "the trainer has handed its weights over"
        at = 2  # it trains
        calls.clear()
        launcher.lost.set()
        await slot.lifecycle.settle()
        await asyncio.sleep(0.2)
        assert calls[:2] == ["stopped", "started"]
        assert "/continue_generation" not in calls
        await slot.load(streamed(2))
        assert await slot.requests.weight_version() == 2
    await slot.lifecycle.stop()


async def test_a_closed_client_asks_nothing_any_more(launcher: Launcher) -> None:
    client = await launcher.start()
    await client.health()
    await client.close()
    with pytest.raises(EngineError, match="is closed"):
        await client.health()
