"""`TrainerGroup`: the train workers, as the loop sees them. Each holds a rank of every role."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.runtime.cluster import Cluster, stop_actor, within
from rlcore.runtime.worker import TrainWorker, UpdateResult, WorkerSetup

if TYPE_CHECKING:
    from rlcore.data.batch import TrainBatch
    from rlcore.engines.publish_file import Location
    from rlcore.plugins.files import PluginFile

START_SECONDS = 600.0
UPDATE_SECONDS = 3600.0
SAVE_SECONDS = 1800.0
STOP_SECONDS = 20.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a rank runs: a bundle of a placement group and its share of a GPU."""

    bundle: tuple[Any, int]
    gpus: float


class TrainerGroup:
    """One actor a rank. Every call waits for all ranks, with a time limit."""

    def __init__(
        self, cluster: Cluster, slots: Sequence[Slot], files: Sequence[PluginFile], env: Mapping[str, str]
    ) -> None:
        self._cluster = cluster
        self._actors = [
            cluster.actor(TrainWorker, rank, files, cpus=1, gpus=slot.gpus, env=env, bundle=slot.bundle)
            for rank, slot in enumerate(slots)
        ]
        self._data_ranks: list[int] = []

    async def start(self, setups: Sequence[WorkerSetup]) -> None:
        """Build the model on every rank."""
        nodes = await self._all("node", START_SECONDS, lambda rank: ())
        host = nodes[0] if len(set(nodes)) > 1 else _LOOPBACK
        port = await within(START_SECONDS, "Train worker 0", self._actors[0].listen.remote(host))
        self._data_ranks = await asyncio.gather(
            *(
                within(START_SECONDS, f"Train worker {rank}", actor.start.remote(setups[rank], host, port))
                for rank, actor in enumerate(self._actors)
            )
        )

    @property
    def data_parallel(self) -> int:
        """The number of data-parallel ranks."""
        return max(self._data_ranks) + 1

    async def watch(self) -> None:
        """Raises `WorkerError` when a worker dies; never returns."""
        calls = [
            asyncio.ensure_future(
                within(None, f"Train worker {rank}", actor.watch.options(concurrency_group="watch").remote())
            )
            for rank, actor in enumerate(self._actors)
        ]
        try:
            await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def update(
        self, shares: Sequence[TrainBatch], *, step: int, first: bool, version: int | None
    ) -> UpdateResult:
        """Train on one rollout batch, a share for each data-parallel rank, and write weights `version`.

        `version` None: nothing is written. The result of rank 0.
        """
        put = self._cluster.ray.put
        references = [put(share) for share in shares]
        results = await self._all(
            "update",
            UPDATE_SECONDS,
            lambda rank: (references[self._data_ranks[rank]], step, first, version),
        )
        result: UpdateResult = results[0]
        return result

    async def write_weights(self, version: int) -> Location:
        """Lay the present weights down for the engines, as `version`."""
        location: Location = (await self._all("write_weights", SAVE_SECONDS, lambda rank: (version,)))[0]
        return location

    async def refresh_reference(self) -> None:
        """Copy the policy into the reference."""
        await self._all("refresh_reference", UPDATE_SECONDS, lambda rank: ())

    async def stage(self, roles: Sequence[str]) -> None:
        """Copy the state of `roles` to host memory; training may go on afterwards."""
        await self._all("stage", SAVE_SECONDS, lambda rank: (list(roles),))

    async def write(self, folder: Path) -> None:
        """Write what was staged, each role into a folder of its name in `folder`."""
        await self._all("write", SAVE_SECONDS, lambda rank: (str(folder),), thread="write")

    async def load(self, folder: Path, roles: Sequence[str]) -> None:
        """Load what `save` wrote."""
        for role in roles:
            await self._all("load", SAVE_SECONDS, lambda rank, role=role: (role, str(folder / role)))

    async def stop(self) -> None:
        """Leave the process group in order where that is still possible, then end every worker."""
        leaving = [within(STOP_SECONDS, "Train worker", actor.stop.remote()) for actor in self._actors]
        await asyncio.gather(*leaving, return_exceptions=True)
        self.kill()

    def kill(self) -> None:
        """End every worker at once."""
        for actor in self._actors:
            stop_actor(self._cluster.ray, actor)

    async def _all(self, method: str, seconds: float, arguments: Any, thread: str | None = None) -> list[Any]:
        options = {"concurrency_group": thread} if thread else {}
        calls = [
            within(
                seconds,
                f"Train worker {rank}",
                getattr(actor, method).options(**options).remote(*arguments(rank)),
            )
            for rank, actor in enumerate(self._actors)
        ]
        return list(await asyncio.gather(*calls))
