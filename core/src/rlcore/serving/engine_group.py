"""`EngineGroup`: the engines, as the loop sees them."""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlcore.api.cluster import Cluster
from rlcore.api.engine import EngineLaunch
from rlcore.api.errors import EngineError
from rlcore.api.factory import load
from rlcore.checkpoint.disk import writing
from rlcore.engines import external
from rlcore.engines.client import EngineClient, MemoryTag
from rlcore.engines.external import ExternalLauncher
from rlcore.engines.fleet import Fleet, FleetEngine
from rlcore.engines.lifecycle import Launcher, Spares
from rlcore.engines.probe import Probe
from rlcore.engines.publish import Publisher, verify_by_reload
from rlcore.engines.publish_file import Fp8Weights, WeightForms, WeightsLocation
from rlcore.engines.router import Listing, RoutedEngine, Router
from rlcore.engines.stream import WeightStream
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore.engines.tally import tally_metrics
from rlcore.preparation.prepared import Served
from rlcore.serving.placement import Nodes
from rlcore.serving.servers import LOGS, Servers
from rlcore.workers.setup import cpu_threads
from rlcore.workers.trainer_group import BundleSlot, TrainerGroup
from rlcore_machine.network import LOOPBACK
from rlcore_machine.reaper import Reaper
from rlcore_machine.shared_memory import shared_dir
from rlcore_machine.tasks import together

LOOKS_S = 1.0
"""Seconds between looks at how busy the servers are."""


class EngineGroup:
    """The supervised engines, and the weights' way into all of them."""

    def __init__(
        self,
        cluster: Cluster,
        places: Sequence[Nodes],
        prepared: Served,
        reaper: Reaper,
        sources: Sequence[Sequence[int]] = (),
    ) -> None:
        """`places`: where each engine starts that this run starts itself. `sources`: for each of them, the
        train ranks on the devices of its ranks (`rlcore.serving.placement.sources_of`); empty: none.
        """
        self._prepared, self._here = prepared, cluster.here
        self._part = prepared.resolved.engine
        # A new token for each run: whoever finds a port of its servers cannot use it.
        token = external.token() if prepared.engine_urls else secrets.token_urlsafe(32)
        self.spares = Spares(limit=prepared.resolved.run.serving.engine_replacements)
        self._servers = Servers(cluster, prepared.resolved, token, self.spares)
        self._weights = _weights_dir(prepared)
        reaper.remove(self._weights)  # in memory it would stay until the next boot, were this process killed
        self.publisher = self._new_publisher()
        self._publications = 0
        self._trainer: TrainerGroup | None = None
        launchers = self._launchers(places)
        # The engines that evaluate come last. They are in no router, and lag behind the trainer.
        count = len(launchers) - prepared.eval_engines
        router = self._router = self._new_router() if count else None
        self._every = [
            self._servers.supervised(
                f"Engine {index}",
                launcher,
                self.publisher.beside(sources[index] if sources else ()),
                registry=Listing(router, self._role(index)) if router and index < count else None,
                lags=index >= count,
            )
            for index, launcher in enumerate(launchers)
        ]
        self._engines, self._evaluating = self._every[:count], self._every[count:]
        # The client of the router, once that runs.
        self._asking: EngineClient | None = None
        self.clients: Sequence[FleetEngine | RoutedEngine] = Fleet(self._engines).clients
        """A client for each engine, in order. With a router, each client asks the router."""
        self.eval_clients: Sequence[FleetEngine] = Fleet(self._evaluating).clients
        """The engines that evaluate beside training, if there are such."""

    @property
    def replaced(self) -> int:
        """Servers that were replaced so far."""
        return self.spares.used

    def connect(self, trainer: TrainerGroup) -> None:
        """Connect the publisher to the trainer, before the first publication."""
        self._trainer = trainer
        self.publisher.connect(trainer.broadcast, None if trainer.is_here else self._here)

    async def start(self) -> None:
        """Start every server and wait until all answer."""
        if self._router is not None:  # first: each engine is put on its list as soon as it answers
            await self._router.start()
        await together(engine.lifecycle.start() for engine in self._every)
        if self._router is not None:
            can = await self._engines[0].requests.with_client(lambda client: client.capabilities())
            self._asking = self._client(
                self._router.url, engines=len(self._engines), capabilities=can, headers=self._router.headers
            )
            self.clients = [RoutedEngine(engine, self._engines, self._asking) for engine in self._engines]

    async def drain(self) -> None:
        """Returns when no engine has anything left to do."""
        await together(engine.drain() for engine in self._engines)

    async def release(self, *, keep_weights: bool = False) -> None:
        """Idle engines give the devices' memory back, until `publish` (that of weights) and `resume`."""
        # Without tags an engine gives back everything.
        tags: tuple[MemoryTag, ...] = ("kv_cache", "cuda_graph") if keep_weights else ()
        await together(engine.release(*tags) for engine in self._engines)

    async def resume(self) -> None:
        """Engines take what they gave back, and serve; those that are lost are replaced."""
        await together(engine.resume() for engine in self._engines)

    async def publish_for_evaluation(self, location: WeightsLocation) -> None:
        """Like `publish`, for the engines that evaluate."""
        await self._publish(self._evaluating, location, keep_cache=False, check=False)

    async def prove(self, probe: Probe) -> None:
        """Every engine but those that evaluate samples with what was published."""
        await together(engine.check(probe.check) for engine in self._engines)

    async def publish(self, location: WeightsLocation, *, keep_cache: bool = False) -> None:
        """Every engine but those that evaluate loads the weights and proves that it has them.

        See `Publisher.load`.
        """
        every = self._prepared.resolved.run.serving.check_weights_every
        self._publications += 1
        due = every > 0 and self._publications % every == 0
        await self._publish(self._engines, location, keep_cache=keep_cache, check=due)

    async def _publish(
        self, engines: Sequence[SupervisedEngine], location: WeightsLocation, *, keep_cache: bool, check: bool
    ) -> None:
        run, model = self._prepared.resolved.run, Path(self._prepared.model.path)
        limit_s = run.limits.publish_timeout
        try:
            async with asyncio.timeout(limit_s), self._streamed(location, len(engines)) as mine:
                # At the same time, for a streamed piece is made once and goes to all of them.
                await together(engine.load(mine, keep_cache=keep_cache) for engine in engines)
                if check:
                    # A reload reads files, and streamed weights have none.
                    if self.publisher.is_streamed and self._trainer is not None:
                        location = await self._trainer.write_weights(location.version, whole=True)
                    await together(
                        engine.check(lambda client: verify_by_reload(self.publisher, client, location, model))
                        for engine in engines
                    )
        except TimeoutError:
            raise EngineError(
                f"An engine took longer than {limit_s:g} s to load new weights (--publish-timeout)."
            ) from None

    def take_metrics(self) -> dict[str, float]:
        """What the engines have done since the last call, without servers that were lost meanwhile."""
        return tally_metrics(client.take_tally() for client in self._serving)

    @property
    def _serving(self) -> list[EngineClient]:
        """The clients of the servers that serve now, and of the router if there is one."""
        servers = [
            engine.lifecycle.server.client for engine in self._every if engine.lifecycle.server is not None
        ]
        return servers if self._asking is None else [*servers, self._asking]

    @contextlib.asynccontextmanager
    async def _streamed(self, location: WeightsLocation, engines: int) -> AsyncIterator[WeightsLocation]:
        """`location`, with a stream of pieces for `engines` if they come from the trainer's memory."""
        if not self.publisher.is_streamed:
            yield location
            return
        trainer, version = self._trainer, location.version
        assert trainer is not None, "connected before the first publication"
        stream = WeightStream(lambda ranks: trainer.pieces(version, ranks), engines)
        try:
            yield replace(location, stream=stream)
        finally:
            await stream.close()

    async def watch(self) -> None:
        """Raises `EngineError` when an engine is lost and may not be replaced; never returns."""
        watched = [self._router.watch()] if self._router is not None else []
        # `_look` never ends, so this goes on where there is no engine: otherwise the run would end.
        await asyncio.gather(*watched, self._look(), *(engine.lifecycle.watch() for engine in self._every))

    async def _look(self) -> None:
        """Note every second how busy the servers are. Servers that do not answer are left to `watch`."""
        while True:
            await asyncio.sleep(LOOKS_S)
            # Not of the router, which knows no path but those of requests.
            looks = [client.look() for client in self._serving if client is not self._asking]
            for error in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(error, BaseException) and not isinstance(error, EngineError):
                    raise error

    async def stop(self) -> None:
        """End the servers, give the published weights' memory back."""
        # Whatever one of them raises, the others are ended too.
        await asyncio.gather(*(engine.lifecycle.stop() for engine in self._every), return_exceptions=True)
        if self._asking is not None:
            await self._asking.close()
        if self._router is not None:
            await self._router.stop()
        shutil.rmtree(self._weights, ignore_errors=True)

    def _new_publisher(self) -> Publisher:
        """Brings weights into the engines: those of others read files, ours do as `--engine.publish` says."""
        model, root = self._prepared.model, self._weights
        publisher: Publisher = self._part.build().publisher(
            weights_dir=str(root),
            model_path=model.path,
            dtype=model.dtype,
            external=bool(self._prepared.engine_urls),
        )
        fp32 = self._prepared.resolved.model.family.fp32_weights
        fp8 = Fp8Weights.of(Path(model.path))
        return publisher.holding(WeightForms(fp8=fp8, fp32=fp32, overlays=self._prepared.overlays))

    def _launchers(self, places: Sequence[Nodes]) -> list[Launcher]:
        """One for each engine: those of others first, then those that start at `places`."""
        limit_s = self._prepared.resolved.run.serving.engine_health_limit
        urls = self._prepared.engine_urls
        launchers: list[Launcher] = [ExternalLauncher(self._client(url), limit_s=limit_s) for url in urls]
        for index, nodes in enumerate(places):
            launches = [self._launch(index, node, slot) for node, slot in enumerate(nodes)]
            launchers.append(self._servers.launcher(f"Engine {index}", nodes, launches, self._client))
        return launchers

    def _role(self, index: int) -> Mapping[str, Any]:
        """The role of an engine, for the router."""
        if self._prepared.engine_urls:
            return {}
        role: Mapping[str, Any] = self._part.build().router_role(self._prepared.fields_of(index))
        return role

    def _new_router(self) -> Router | None:
        if (policy := self._prepared.resolved.run.serving.router) is None:
            return None
        router: Router = load(self._part.config.routers[policy], self._part.name)(
            policy,
            token=self._servers.token,
            log_path=self._prepared.run_dir / LOGS / "router.log",
            divided=bool(self._role(0)),
        )
        return router

    def _client(self, url: str, **more: Any) -> EngineClient:
        vocabulary = self._prepared.hf_config.get("vocab_size")
        columns = self._prepared.resolved.run.loss.replayed
        return self._servers.client(url, vocab_size=vocabulary, columns=columns, **more)

    def _launch(self, index: int, node: int, slot: BundleSlot) -> EngineLaunch:
        prepared = self._prepared
        assert self._servers.token is not None, "a server of the run has a token of the run"
        first_port = self._part.build().config.port
        return EngineLaunch(
            model_path=prepared.model.path,
            host=LOOPBACK if slot.is_here else slot.host,
            # Requests go to the first node alone, so further ones take any free port.
            port=first_port + index if first_port and node == 0 else 0,
            token=self._servers.token,
            dtype=prepared.model.dtype,
            context_length=prepared.resolved.context_length,
            seed=prepared.resolved.run.seed + index,  # else engines without seeds of requests sample alike
            weights_dir=str(self._weights),
            log_path=str(prepared.run_dir / LOGS / f"engine-{index}{f'-node-{node}' if node else ''}.log"),
            node=node,
            threads=cpu_threads(prepared.resolved.run),
            shares_gpu=prepared.shares_gpu,
            overlays=prepared.overlays,
            fields=prepared.fields_of(index),
        )


def _weights_dir(prepared: Served) -> Path:
    """A new folder for publications: in memory, or where the servers of others look."""
    run = prepared.resolved.run
    if not prepared.engine_urls:
        # Twice the file: bf16 weights may be published as fp32.
        size = 2 * sum(file.stat().st_size for file in Path(prepared.model.path).glob("*.safetensors"))
        whole = size if run.serving.check_weights_every else 0  # what a check loads anew
        return shared_dir("weights", prepared.resolved.engine.build().room(size) + whole)
    folder = Path(run.serving.engine_weights_dir or prepared.run_dir) / f"weights-{secrets.token_hex(4)}"
    with writing(folder):
        folder.mkdir(parents=True)
    return folder
