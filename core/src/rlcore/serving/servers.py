"""`Servers`: how the servers of a run are started, asked, watched and replaced.

Beside each server is a process that starts it, watches it and ends it: its supervisor.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlcore.api.errors import EngineError, RlcoreError
from rlcore.api.factory import load
from rlcore.api.part import Part
from rlcore.api.plugin_file import PluginFile, install_plugin_files
from rlcore.workers.actors import BEAT_SECONDS, FIRST_SECONDS, watched, within
from rlcore_machine.network import HeldPort
from rlcore_machine.tasks import first, together

if TYPE_CHECKING:
    from rlcore.api.cluster import Actor, Cluster
    from rlcore.api.engine import EngineLaunch
    from rlcore.compose.resolved import Inference
    from rlcore.engines.client import EngineClient
    from rlcore.engines.lifecycle import Launcher, ServerRegistry, Spares
    from rlcore.engines.publish import Publisher
    from rlcore.engines.supervised_engine import SupervisedEngine
    from rlcore.serving.placement import Nodes
    from rlcore_machine.server_process import ServerProcess


START_SECONDS = 900.0
STOP_SECONDS = 30.0
_WATCH_SECONDS = 0.5

LOGS = "logs"
"""The folder in a run's for the logs of servers."""


class EngineSupervisor:
    """The actor that owns a server process of an engine, the only one or that of one of its nodes."""

    def __init__(self, plugin_files: Sequence[PluginFile], devices: Sequence[str] = ()) -> None:
        """`devices`: the GPUs of the server; empty: those that this process was given."""
        if devices:
            # The server inherits it.
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        install_plugin_files(plugin_files)
        self._stopping = threading.Event()
        self._server: ServerProcess | None = None
        self._ports: list[HeldPort] = []

    def hold_port(self, host: str) -> int:
        """A port of `host` that nobody else gets until `stop`."""
        self._ports.append(HeldPort(host))
        return self._ports[-1].number

    def start(self, part: Part, launch: EngineLaunch, silent_s: float = math.inf) -> str:
        """Start the server, wait until it answers, return its URL. Only the first node's server answers.

        Raises `EngineError` where it ends, or is stopped for `silent_s` seconds.
        """
        from rlcore_machine.server_process import ServerProcess

        engine = part.build()
        # Chosen here and not by the driver, which may be on another host.
        launch = replace(launch, port=launch.port or self.hold_port(launch.host))
        command = engine.command(launch)
        self._server = ServerProcess(
            command.argv,
            name=part.name,
            log_path=launch.log_path,
            env=command.env,
            grace_s=engine.config.stop_grace_s,
            error=EngineError,
        )
        self._server.start()
        url = f"http://{launch.host}:{launch.port}"
        if launch.node == 0:
            self._server.wait_ready(
                f"{url}{engine.health}",
                token=launch.token,
                limit_s=engine.config.start_limit_s,
                stopped_s=silent_s,
            )
        return url

    def watch(self) -> None:
        """Raises `EngineError` with the end of the server's log where the server died (see `watched`)."""
        for _ in range(round(BEAT_SECONDS / _WATCH_SECONDS)):
            # A server that ends because it was told to has not died.
            if self._stopping.wait(_WATCH_SECONDS):
                return
            if self._server is not None:
                self._server.check()

    def stop(self) -> None:
        """End the server and all its processes."""
        self._stopping.set()
        if self._server is not None:
            self._server.stop()
        for port in self._ports:
            port.close()


@dataclass
class ServerLauncher:
    """Starts each server of an engine (a `lifecycle.Launcher`), with a supervisor on each node.

    `supervisors`: makes the actors, whose processes are ready while others still start. `launches`: one for
    each node; several nodes meet at `meeting_host`, the host of the first. `silent_s`: seconds without a sign
    of life after which a supervisor counts as dead.
    """

    name: str
    supervisors: Callable[[], Sequence[Actor]]
    part: Part
    launches: Sequence[EngineLaunch]
    client: Callable[[str], EngineClient]
    meeting_host: str
    silent_s: float

    def __post_init__(self) -> None:
        self._actors = self.supervisors()
        self._answers = False

    async def start(self) -> EngineClient:
        """Start a server; its client."""
        # Those of the first server were made with this launcher. `stop` has ended them if this is a
        # replacement.
        self._actors = self._actors or self.supervisors()
        meeting = await self._meeting() if len(self.launches) > 1 else None
        starts = [
            within(
                START_SECONDS,
                self.name,
                actor.call("start", self.part, replace(launch, meeting=meeting), self.silent_s),
            )
            for actor, launch in zip(self._actors, self.launches, strict=True)
        ]
        answer = asyncio.ensure_future(starts[0])
        # The first node answers once all have joined, so a further one that ends is told of meanwhile.
        further = zip(self._actors[1:], starts[1:], strict=True)
        watches = [self._watch(actor, FIRST_SECONDS) for actor in self._actors]
        await first([answer, *watches, *(self._outlive(actor, start) for actor, start in further)])
        self._answers = True
        return self.client(answer.result())

    async def died(self) -> str:
        """Why the server ended: the end of its log, or what happened to its supervisor."""
        try:
            await together(self._watch(actor) for actor in self._actors)
        except RlcoreError as error:
            return str(error)
        return f"{self.name} was told to end."

    async def stop(self) -> None:
        """End supervisors and servers."""
        actors, self._actors = self._actors, ()
        if self._answers:  # one that is still starting cannot answer; its guard ends the server
            self._answers = False
            stops = [within(STOP_SECONDS, self.name, actor.call("stop")) for actor in actors]
            await asyncio.gather(*stops, return_exceptions=True)  # who is gone took its server along
        for actor in actors:
            actor.kill()

    async def _outlive(self, actor: Actor, start: Awaitable[str]) -> None:
        """Raises if the server of a further node ends: the first node's server would wait for it."""
        await start
        await self._watch(actor)

    async def _watch(self, actor: Actor, more: float = 0.0) -> None:
        """Raises when the server or the actor ends."""
        await within(None, self.name, watched(actor, self.silent_s, "--engine-health-limit", more))

    async def _meeting(self) -> str:
        port = self._actors[0].call("hold_port", self.meeting_host)
        return f"{self.meeting_host}:{await within(START_SECONDS, self.name, port)}"


class Servers:
    """The servers that share a bearer token: the engines, or the frozen models."""

    def __init__(self, cluster: Cluster, resolved: Inference, token: str | None, spares: Spares) -> None:
        """`token`: None for servers of others that want none. `spares`: the spares of the whole run."""
        self._cluster = cluster
        self._resolved = resolved
        self.token = token
        self.spares = spares

    def supervised(
        self,
        name: str,
        launcher: Launcher,
        publisher: Publisher | None = None,
        *,
        registry: ServerRegistry | None = None,
        lags: bool = False,
    ) -> SupervisedEngine:
        """A `SupervisedEngine`. The run's settings say how often its health is checked."""
        from rlcore.engines.lifecycle import Health
        from rlcore.engines.supervised_engine import SupervisedEngine

        run = self._resolved.run
        health = Health(every_s=run.serving.engine_health_every, limit_s=run.serving.engine_health_limit)
        return SupervisedEngine(
            name, launcher, publisher, health=health, spares=self.spares, registry=registry, lags=lags
        )

    def launcher(
        self, name: str, nodes: Nodes, launches: Sequence[EngineLaunch], client: Callable[[str], EngineClient]
    ) -> ServerLauncher:
        """Launches the run's engine, a process for each of `launches` on its node. `client`: from its URL."""

        def supervisors() -> list[Actor]:
            files = self._resolved.plugin_files
            return [
                self._cluster.actor(EngineSupervisor, files, slot.devices, gpus=slot.gpus, bundle=slot.bundle)
                for slot in nodes
            ]

        return ServerLauncher(
            name,
            supervisors,
            self._resolved.engine,
            launches,
            client,
            meeting_host=nodes[0].host,
            silent_s=self._resolved.run.serving.engine_health_limit,
        )

    def client(self, url: str, *, engines: int = 1, **more: Any) -> EngineClient:
        """A client for the server at `url`, with `engines` behind it. `more`: more of `EngineClient`."""
        run = self._resolved.run
        engine = self._resolved.engine
        client: EngineClient = load(engine.build().client, engine.name)(
            url,
            self.token,
            timeout_s=run.serving.engine_timeout,
            control_timeout_s=run.serving.engine_timeout,
            concurrency=run.serving.engine_concurrency * engines,
            **more,
        )
        return client
