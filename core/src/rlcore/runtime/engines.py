"""`EngineGroup`: the engines' supervisors and clients, as the loop sees them."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.engines.publish_file import shared_dir
from rlcore.errors import EngineError
from rlcore.runtime.cluster import Cluster, stop_actor, within
from rlcore.runtime.setup import cpu_threads
from rlcore.runtime.trainer import Slot

if TYPE_CHECKING:
    from rlcore.engines.launch import EngineLaunch
    from rlcore.engines.process import ServerProcess
    from rlcore.engines.publish import Publisher
    from rlcore.engines.publish_file import Location
    from rlcore.plugins.files import PluginFile
    from rlcore.runtime.prepare import Served
    from rlcore.spec import Part

START_SECONDS = 900.0
PUBLISH_SECONDS = 1800.0
LOGS = "logs"
STOP_SECONDS = 30.0
_WATCH_SECONDS = 0.5


class EngineSupervisor:
    """The Ray actor that owns one engine's server process."""

    def __init__(self, plugin_files: Sequence[PluginFile]) -> None:
        from rlcore.plugins.files import install

        install(plugin_files)
        self._stopping = threading.Event()
        self._server: ServerProcess | None = None

    def start(self, part: Part, launch: EngineLaunch) -> str:
        """Start the server and wait until it answers; its URL."""
        from rlcore.engines.process import ServerProcess, free_port

        engine = part.build()
        launch = replace(launch, port=free_port(launch.host))
        command = engine.command(launch)
        self._server = ServerProcess(
            command.argv,
            name=part.name,
            log_path=launch.log_path,
            env=command.env,
            grace_s=engine.config.stop_grace_s,
        )
        self._server.start()
        url = f"http://{launch.host}:{launch.port}"
        self._server.wait_ready(f"{url}/health", token=launch.token, limit_s=engine.config.start_limit_s)
        return url

    def watch(self) -> None:
        """Raises `EngineError` with the end of the server's log when the server dies."""
        while not self._stopping.wait(_WATCH_SECONDS):
            assert self._server is not None, "watched after its start"
            self._server.check()

    def stop(self) -> None:
        """End the server and all its processes."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()


class EngineGroup:
    """One supervisor and one client for each engine. `clients` is filled by `start`."""

    def __init__(self, cluster: Cluster, slots: Sequence[Slot], prepared: Served) -> None:
        self._cluster = cluster
        self._prepared = prepared
        self._part = prepared.resolved.engine
        self._token = secrets.token_urlsafe(32)
        self._clients: list[Any] = []
        model = prepared.model
        # Twice the file: bf16 weights may be published as fp32.
        self._weights = shared_dir("weights", size_bytes=2 * _weight_bytes(Path(model.path)))
        cluster.reaper.remove(self._weights)
        files = prepared.resolved.plugin_files
        self._actors = [
            cluster.actor(EngineSupervisor, files, cpus=1, gpus=slot.gpus, bundle=slot.bundle)
            for index, slot in enumerate(slots)
        ]
        self.publisher: Publisher = self._part.build().publisher(
            weights_dir=str(self._weights), model_path=model.path, dtype=model.dtype
        )

    @property
    def clients(self) -> Sequence[Any]:
        """An `EngineClient` for each engine, in their order."""
        return self._clients

    async def start(self) -> None:
        """Start every server and wait until all answer."""
        from rlcore.engines.client import EngineClient

        run = self._prepared.resolved.run
        calls = [
            within(START_SECONDS, f"Engine {index}", actor.start.remote(self._part, self._launch(index)))
            for index, actor in enumerate(self._actors)
        ]
        for url in await asyncio.gather(*calls):
            self._clients.append(
                EngineClient(
                    url,
                    self._token,
                    timeout_s=run.engine_timeout,
                    control_timeout_s=run.engine_timeout,
                    concurrency=run.engine_concurrency,
                    vocab_size=self._prepared.hf_config.get("vocab_size"),
                    routed_experts=run.replay_routing,
                )
            )

    async def publish(self, location: Location, *, keep_cache: bool = False) -> None:
        """Every engine loads the weights and proves that it has them (see `Publisher.load`)."""
        from rlcore.engines.publish import load_all

        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await load_all(self.publisher, self._clients, location, keep_cache=keep_cache)
        except TimeoutError:
            raise EngineError(
                f"An engine took longer than {PUBLISH_SECONDS:g} s to load new weights."
            ) from None

    async def watch(self) -> None:
        """Raises `EngineError` when an engine dies; never returns."""
        calls = [
            asyncio.ensure_future(
                within(None, f"Engine {index}", actor.watch.options(concurrency_group="watch").remote())
            )
            for index, actor in enumerate(self._actors)
        ]
        if not calls:
            await asyncio.Event().wait()
        try:
            await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def stop(self) -> None:
        """Close the clients, end the servers, give the published weights' memory back."""
        await asyncio.gather(*(client.close() for client in self._clients), return_exceptions=True)
        if self._clients:  # a supervisor that is still starting cannot answer; its guard ends the server
            calls = [within(STOP_SECONDS, "Engine", actor.stop.remote()) for actor in self._actors]
            await asyncio.gather(*calls, return_exceptions=True)
        for actor in self._actors:
            stop_actor(self._cluster.ray, actor)
        shutil.rmtree(self._weights, ignore_errors=True)

    def _launch(self, index: int) -> EngineLaunch:
        from rlcore.engines.launch import EngineLaunch

        prepared = self._prepared
        return EngineLaunch(
            model_path=prepared.model.path,
            host="127.0.0.1",
            port=0,
            token=self._token,
            dtype=prepared.model.dtype,
            context_length=prepared.context_length,
            seed=prepared.resolved.run.seed + index,
            weights_dir=str(self._weights),
            log_path=str(prepared.run_dir / LOGS / f"engine-{index}.log"),
            threads=cpu_threads(prepared.resolved.run),
            shares_gpu=prepared.shares_gpu,
            fields=prepared.engine_fields,
        )


def _weight_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))
