"""The process beside each engine's server: it starts the server, watches it and ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlcore.errors import RlcoreError
from rlcore.runtime.cluster import stop_actor, within

if TYPE_CHECKING:
    from rlcore.engines.client import EngineClient
    from rlcore.engines.launch import EngineLaunch
    from rlcore.engines.process import ServerProcess
    from rlcore.plugins.files import PluginFile
    from rlcore.spec import Part

START_SECONDS = 900.0
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
        launch = replace(launch, port=launch.port or free_port(launch.host))
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


class RayLauncher:
    """Starts each server of an engine (`rlcore.engines.slot.Launcher`) under a supervisor of its own."""

    def __init__(
        self,
        name: str,
        supervisor: Callable[[], Any],
        ray: Any,
        part: Part,
        launch: EngineLaunch,
        client: Callable[[str], EngineClient],
    ) -> None:
        """`supervisor`: makes an actor, whose process is ready while others still start."""
        self._name = name
        self._supervisor = supervisor
        self._ray = ray
        self._part = part
        self._launch = launch
        self._client = client
        self._actor: Any = supervisor()
        self._answers = False

    async def start(self) -> EngineClient:
        """A server, by its client."""
        if self._actor is None:
            self._actor = self._supervisor()
        url = await within(START_SECONDS, self._name, self._actor.start.remote(self._part, self._launch))
        self._answers = True
        return self._client(url)

    async def died(self) -> str:
        """The end of the log of a server that ended, or what became of its supervisor."""
        watching = self._actor.watch.options(concurrency_group="watch").remote()
        try:
            await within(None, self._name, watching)
        except RlcoreError as error:
            return str(error)
        return f"{self._name} was told to end."

    async def stop(self) -> None:
        """End supervisor and server."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        if self._answers:  # one that is still starting cannot answer; its guard ends the server
            self._answers = False
            with suppress(RlcoreError):  # a supervisor that is gone took its server along
                await within(STOP_SECONDS, self._name, actor.stop.remote())
        stop_actor(self._ray, actor)
