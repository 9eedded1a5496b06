"""`TrainerGroup`: the train workers, as the loop sees them.

Each holds a rank of every role, but of a critic that has workers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.runtime.cluster import LOOPBACK, Actor, Cluster, Thread, within
from rlcore.runtime.critic_worker import CriticWorker
from rlcore.runtime.worker import CRITIC, TrainWorker, UpdateResult, WorkerSetup

if TYPE_CHECKING:
    from rlcore.api.batch import TrainBatch
    from rlcore.api.plugin_file import PluginFile
    from rlcore.engines.broadcast import Call
    from rlcore.engines.publish_file import WeightsLocation

START_SECONDS = 600.0
UPDATE_SECONDS = 3600.0
SAVE_SECONDS = 1800.0
STOP_SECONDS = 20.0
TRAINING, CRITICS = "Train worker", "Critic worker"
"""What the two kinds of worker are called in errors."""


@dataclass(frozen=True, kw_only=True)
class BundleSlot:
    """Where a rank, or a node of an engine, runs: a bundle of a placement group and its share of a GPU.

    `host`: its address in the cluster; `is_here`: whether that is this process's.
    """

    bundle: tuple[Any, int]
    gpus: float
    host: str
    is_here: bool

    @property
    def reached_at(self) -> str:
        """The address that a server there listens at, for this process."""
        return LOOPBACK if self.is_here else self.host


class TrainerGroup:
    """One actor a rank. Every call waits for all ranks, with a time limit."""

    def __init__(
        self,
        cluster: Cluster,
        slots: Sequence[BundleSlot],
        files: Sequence[PluginFile],
        env: Mapping[str, str],
        critics: Sequence[BundleSlot] = (),
    ) -> None:
        """`critics`: as many slots again, for the ranks of a critic that has workers of its own; or none."""
        self._cluster = cluster

        def actor(cls: type, rank: int, slot: BundleSlot) -> Actor:
            return cluster.actor(cls, rank, files, env, gpus=slot.gpus, bundle=slot.bundle)

        self._hosts = [[slot.host for slot in placed] for placed in (slots, critics)]
        self._actors = [actor(TrainWorker, rank, slot) for rank, slot in enumerate(slots)]
        self._critics = [actor(CriticWorker, rank, slot) for rank, slot in enumerate(critics)]
        self._data_ranks: list[int] = []

    async def start(self, setups: Sequence[WorkerSetup]) -> None:
        """Build the models on every rank."""
        peers: Sequence[Actor | None] = self._critics or [None] * len(self._actors)
        place = await self._meeting(TRAINING, self._actors, self._hosts[0])
        given = [(setup, *place, peer) for setup, peer in zip(setups, peers, strict=True)]
        starting = [_answers(TRAINING, self._actors, "start", START_SECONDS, given, None)]
        if self._critics:
            place = await self._meeting(CRITICS, self._critics, self._hosts[1])
            apart = [(setup, *place) for setup in setups]
            starting.append(_answers(CRITICS, self._critics, "start", START_SECONDS, apart, None))
        self._data_ranks, *_ = await asyncio.gather(*starting)

    @staticmethod
    async def _meeting(kind: str, actors: Sequence[Actor], hosts: Sequence[str]) -> tuple[str, int]:
        """Host and port where the process group of `actors` meets."""
        host = hosts[0] if len(set(hosts)) > 1 else LOOPBACK
        port: int = await within(START_SECONDS, f"{kind} 0", actors[0].call("listen", host))
        return host, port

    @property
    def data_parallel(self) -> int:
        """The number of data-parallel ranks."""
        return max(self._data_ranks) + 1

    async def watch(self) -> None:
        """Raises `WorkerError` when a worker dies; never returns."""
        calls = [
            asyncio.ensure_future(within(None, f"{kind} {rank}", actor.call("watch", thread="watch")))
            for kind, actors in ((TRAINING, self._actors), (CRITICS, self._critics))
            for rank, actor in enumerate(actors)
        ]
        try:
            await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def update(
        self,
        shares: Sequence[TrainBatch],
        *,
        step: int,
        first: bool,
        version: int | None,
        lr_scale: float = 1.0,
    ) -> UpdateResult:
        """Train on one rollout batch, a share for each data-parallel rank, and write weights `version`.

        `version` None: nothing is written. `lr_scale`: of the policy's learning rate. The result of rank 0.
        """
        references = [self._cluster.put(share) for share in shares]
        results = await self._all(
            "update",
            UPDATE_SECONDS,
            lambda rank: (references[self._data_ranks[rank]], step, first, version, lr_scale),
        )
        result: UpdateResult = results[0]
        return result

    async def write_weights(self, version: int, *, whole: bool = False) -> WeightsLocation:
        """Lay the present weights down for the engines, as `version` (see `Publisher.write`)."""
        locations = await self._all("write_weights", SAVE_SECONDS, lambda rank: (version, whole))
        location: WeightsLocation = locations[0]
        return location

    async def broadcast(self, call: Call, *arguments: Any) -> Any:
        """What the `Sender` of rank 0 answers; it is asked beside training."""
        answer = self._actors[0].call("broadcast", call, *arguments, thread="broadcast")
        return await within(SAVE_SECONDS, f"{TRAINING} 0", answer)

    async def refresh_reference(self) -> None:
        """Copy the policy into the reference."""
        await self._all("refresh_reference", UPDATE_SECONDS, lambda rank: ())

    async def stage(self, roles: Sequence[str]) -> None:
        """Copy the state of `roles` to host memory; training may go on afterwards."""
        apart = [role for role in roles if role == CRITIC and self._critics]
        rest = [role for role in roles if role not in apart]
        await self._all("stage", SAVE_SECONDS, lambda rank: (rest,))
        if apart:
            await self._of_critics("stage", SAVE_SECONDS, apart)

    async def write(self, folder: Path) -> None:
        """Write what was staged, each role into a folder of its name in `folder`."""
        await self._all("write", SAVE_SECONDS, lambda rank: (str(folder),), thread="write")
        await self._of_critics("write", SAVE_SECONDS, str(folder), thread="write")

    async def load(self, folder: Path, roles: Sequence[str]) -> None:
        """Load what `write` wrote."""
        for role in roles:
            if role == CRITIC and self._critics:
                await self._of_critics("load", SAVE_SECONDS, role, str(folder / role))
            else:
                await self._all("load", SAVE_SECONDS, lambda rank, role=role: (role, str(folder / role)))

    async def stop(self) -> None:
        """Leave the process group in order where that is still possible, then end every worker."""
        everyone = [*self._actors, *self._critics]
        leaving = [within(STOP_SECONDS, TRAINING, actor.call("stop")) for actor in everyone]
        await asyncio.gather(*leaving, return_exceptions=True)
        self.kill()

    def kill(self) -> None:
        """End every worker at once."""
        for actor in [*self._actors, *self._critics]:
            actor.kill()

    async def _all(
        self, method: str, seconds: float, arguments: Any, thread: Thread | None = None
    ) -> list[Any]:
        """The answers of the train workers, in the order of their ranks."""
        given = [arguments(rank) for rank in range(len(self._actors))]
        return await _answers(TRAINING, self._actors, method, seconds, given, thread)

    async def _of_critics(
        self, method: str, seconds: float, *arguments: Any, thread: Thread | None = None
    ) -> list[Any]:
        """The answers of the workers that have only a critic; none where there are none."""
        given = [arguments] * len(self._critics)
        return await _answers(CRITICS, self._critics, method, seconds, given, thread)


async def _answers(
    kind: str,
    actors: Sequence[Actor],
    method: str,
    seconds: float,
    arguments: Sequence[Sequence[Any]],
    thread: Thread | None,
) -> list[Any]:
    calls = [
        within(seconds, f"{kind} {rank}", actor.call(method, *given, thread=thread))
        for rank, (actor, given) in enumerate(zip(actors, arguments, strict=True))
    ]
    return list(await asyncio.gather(*calls))
