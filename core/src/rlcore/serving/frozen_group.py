"""`FrozenGroup`: the servers of the frozen models, whose weights stay what they are."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rlcore.api.cluster import Cluster
from rlcore.api.engine import EngineLaunch
from rlcore.api.packed import PackedFloats
from rlcore.api.part import Part
from rlcore.api.server_config import AsksServer, frozen_name
from rlcore.compose.resolved import Inference
from rlcore.engines.fleet import Fleet
from rlcore.engines.lifecycle import Spares
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore.preparation.eval_sets import PreparedEval
from rlcore.preparation.prepared import FrozenModel, Served
from rlcore.serving.servers import LOGS, Servers
from rlcore.workers.setup import cpu_threads
from rlcore.workers.trainer_group import BundleSlot
from rlcore_machine.network import LOOPBACK, HeldPort
from rlcore_machine.tasks import together

ChosenT = TypeVar("ChosenT", bound="Inference")
PartT = TypeVar("PartT", bound="Part[Any]")


class FrozenGroup:
    """A supervised engine for each frozen model. A replaced server keeps the address that rewards know."""

    def __init__(self, cluster: Cluster, slots: Sequence[BundleSlot], served: Served, spares: Spares) -> None:
        """`spares`: the spares of the whole run."""
        self._served = served
        self._token = secrets.token_urlsafe(32)
        self._servers = Servers(cluster, served.resolved, self._token, spares)
        # Held for the whole run: rewards know the address before the server is there, and keep it when the
        # server is replaced.
        self._ports = {model.name: HeldPort(LOOPBACK) for model in served.frozen}
        self._engines: dict[str, SupervisedEngine] = {}
        for model, slot in zip(served.frozen, slots, strict=True):
            name = f"Frozen model {model.name!r}"
            launcher = self._servers.launcher(name, (slot,), [self._launch(model)], self._servers.client)
            self._engines[model.name] = self._servers.supervised(name, launcher)

    def placed(self, chosen: ChosenT) -> ChosenT:
        """`chosen` with the URL of the server in place of each `frozen:NAME` of its rewards."""
        return replace(chosen, rewards=tuple(map(self._placed, chosen.rewards)))

    def placed_evals(self, evals: Sequence[PreparedEval]) -> tuple[PreparedEval, ...]:
        """The same for the rewards of evaluations."""
        return tuple(
            evaluation
            if (reward := evaluation.settings.reward) is None
            else replace(evaluation, settings=replace(evaluation.settings, reward=self._placed(reward)))
            for evaluation in evals
        )

    def engine(self, name: str) -> "FrozenEngine":
        """A client for the model `name`, whichever server runs it at the moment."""
        return FrozenEngine(Fleet([self._engines[name]]))

    async def start(self) -> None:
        """Start every server and wait until all answer."""
        await together(engine.lifecycle.start() for engine in self._engines.values())

    async def watch(self) -> None:
        """Raises `EngineError` when a model is lost and may not be replaced; never returns."""
        if not self._engines:  # the first watcher that returns would end the run
            await asyncio.Event().wait()
        await asyncio.gather(*(engine.lifecycle.watch() for engine in self._engines.values()))

    async def stop(self) -> None:
        """End the servers."""
        await asyncio.gather(
            *(engine.lifecycle.stop() for engine in self._engines.values()), return_exceptions=True
        )
        for port in self._ports.values():
            port.close()

    def _placed(self, part: PartT) -> PartT:
        config = part.config
        if not isinstance(config, AsksServer) or (name := frozen_name(config.url)) is None:
            return part
        address = f"http://{LOOPBACK}:{self._ports[name].number}"
        (path,) = (model.path for model in self._served.frozen if model.name == name)
        return replace(part, config=config.served(address, self._token, path))

    def _launch(self, model: FrozenModel) -> EngineLaunch:
        served, run = self._served, self._served.resolved.run
        return EngineLaunch(
            model_path=model.path,
            host=LOOPBACK,
            port=self._ports[model.name].number,
            token=self._token,
            dtype=served.model.dtype,
            context_length=None,
            seed=run.seed,
            weights_dir=None,
            log_path=str(served.run_dir / LOGS / f"frozen-{model.name}.log"),
            threads=cpu_threads(run),
            fields=model.fields,
            classifier=model.classifier,
            table=f"frozen.{model.name}",
        )


class FrozenEngine:
    """A client for a frozen model that survives its servers (`rlcore.rollout.scoring.TokenScorer`)."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def score(self, token_ids: Sequence[int], *, start: int) -> PackedFloats:
        """The log-probs that `EngineClient.score` gives."""
        return await self._fleet.answer(0, lambda client: client.score(token_ids, start=start))
