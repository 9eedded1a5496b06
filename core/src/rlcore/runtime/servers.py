"""`Servers`: how the servers of a run are started, asked, watched and replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlcore.api.part import load
from rlcore.runtime.supervisor import EngineSupervisor, ServerLauncher

if TYPE_CHECKING:
    from rlcore.api.cluster import Actor, Cluster
    from rlcore.api.engine import EngineLaunch
    from rlcore.compose.resolved import Inference
    from rlcore.engines.client import EngineClient
    from rlcore.engines.client_wire import Capabilities
    from rlcore.engines.publish import Publisher
    from rlcore.engines.supervised_engine import Launcher, ServerRegistry, Spares, SupervisedEngine
    from rlcore.runtime.placement import Nodes

LOGS = "logs"
"""The folder in a run's for the logs of servers."""


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
        """See `SupervisedEngine`. The run's settings say how often its health is checked."""
        from rlcore.engines.supervised_engine import Health, SupervisedEngine

        run = self._resolved.run
        health = Health(every_s=run.serving.engine_health_every, limit_s=run.serving.engine_health_limit)
        return SupervisedEngine(
            name,
            launcher,
            publisher,
            health=health,
            spares=self.spares,
            registry=registry,
            lags=lags,
        )

    def launcher(
        self,
        name: str,
        nodes: Nodes,
        launches: Sequence[EngineLaunch],
        client: Callable[[str], EngineClient],
    ) -> ServerLauncher:
        """Launches the run's engine, a process for each of `launches` on its node. `client`: from its URL."""

        def supervisors() -> list[Actor]:
            return [
                self._cluster.actor(
                    EngineSupervisor,
                    self._resolved.plugin_files,
                    slot.devices,
                    gpus=slot.gpus,
                    bundle=slot.bundle,
                )
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

    def client(
        self,
        url: str,
        *,
        engines: int = 1,
        vocab_size: int | None = None,
        routed_experts: bool = False,
        capabilities: Capabilities | None = None,
    ) -> EngineClient:
        """A client for the server at `url`, with `engines` behind it. For the rest see `EngineClient`."""
        run = self._resolved.run
        engine = self._resolved.engine
        client: EngineClient = load(engine.build().client, engine.name)(
            url,
            self.token,
            timeout_s=run.serving.engine_timeout,
            control_timeout_s=run.serving.engine_timeout,
            concurrency=run.serving.engine_concurrency * engines,
            vocab_size=vocab_size,
            routed_experts=routed_experts,
            capabilities=capabilities,
        )
        return client
