"""`TrainerGroup`: the train workers, as the loop sees them.

Each worker holds a rank of every role, except of those that have workers of their own.
"""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rlcore.api.batch import TrainBatch
from rlcore.api.cluster import Actor, ActorThread, Cluster
from rlcore.api.errors import WorkerError
from rlcore.api.plugin_file import PluginFile
from rlcore.api.roles import POLICY
from rlcore.api.run_config import LimitOptions
from rlcore.api.trainer import SleepLevel
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import OutdatedError, Piece
from rlcore.learning.settings import Scales
from rlcore.workers.actors import FIRST_SECONDS, watched, within
from rlcore.workers.remote_role import peers_of
from rlcore.workers.role_worker import RoleWorker
from rlcore.workers.sent_batch import to_arrays
from rlcore.workers.train_worker import TRAINING, TrainWorker, UpdateResult, WorkerSetup, worker_kind
from rlcore_machine.network import LOOPBACK
from rlcore_machine.tasks import first, together

START_SECONDS = 600.0
STOP_SECONDS = 20.0
CLOSE_SECONDS = 60.0
REFRESH = "refresh"
"""The folder in that of the run where the policy lies on its way into a model on workers of its own."""


@dataclass(frozen=True)
class _Task:
    """A task of the workers. `what` completes "did not finish …". `flag`: the flag that sets `limit_s`."""

    what: str
    limit_s: float
    flag: str = ""


@dataclass(frozen=True, kw_only=True)
class BundleSlot:
    """Where a rank, or a node of an engine, runs: a bundle of a placement group, and how many GPUs it takes.

    `host`: its address in the cluster; `is_here`: whether that is the host of this process. `devices`: the
    GPUs that it sees there, by their names for CUDA_VISIBLE_DEVICES; empty: the cluster decides.
    """

    bundle: tuple[Any, int]
    gpus: float
    host: str
    is_here: bool
    devices: tuple[str, ...] = ()


class TrainerGroup:
    """One actor a rank. Every call waits for all ranks, with a time limit."""

    def __init__(
        self,
        cluster: Cluster,
        slots: Sequence[BundleSlot],
        files: Sequence[PluginFile],
        env: Mapping[str, str],
        roles: Mapping[str, Sequence[BundleSlot]],
        *,
        limits: LimitOptions,
    ) -> None:
        """`roles`: of each role that has workers of its own, their slots."""
        self._cluster = cluster
        self._limits = limits
        self._under_way: dict[_Task, float] = {}

        def actor(role: str, rank: int, slot: BundleSlot) -> Actor:
            cls = TrainWorker if role == POLICY else RoleWorker
            return cluster.actor(cls, rank, files, env, gpus=slot.gpus, bundle=slot.bundle)

        self.is_here = slots[0].is_here
        """Whether the first rank is on the host of this process."""
        every = {POLICY: slots, **roles}
        self._hosts = {role: [slot.host for slot in own] for role, own in every.items()}
        self._actors = {
            role: [actor(role, rank, slot) for rank, slot in enumerate(own)] for role, own in every.items()
        }
        self._data_ranks: list[int] = []
        self._asleep: SleepLevel | None = None
        self._version: int | None = None
        self._weights_lock = asyncio.Lock()
        """Held while weights change, and while pieces of them are made: all pieces are of one version."""
        self.device = ""
        """The name of the first worker's GPU."""

    async def start(self, setups: Sequence[WorkerSetup], roles: Mapping[str, Sequence[WorkerSetup]]) -> None:
        """Build the models on every rank. `roles`: of those that have workers of their own.

        Raises `WorkerError` as `watch` does: a worker that stops while it starts is noticed as any other.
        """
        start = asyncio.ensure_future(self._start(setups, roles))
        await first([start, self.watch(FIRST_SECONDS)])
        start.result()

    async def _start(self, setups: Sequence[WorkerSetup], roles: Mapping[str, Sequence[WorkerSetup]]) -> None:
        self._folder = Path(setups[0].learner.folder)
        await asyncio.to_thread(shutil.rmtree, self._folder / REFRESH, ignore_errors=True)  # of a run cut off
        task, starting = _Task("its start", START_SECONDS), []
        for role in self._actors:
            place = await self._meeting(role)
            calls = [(role, setup, *place) for setup in {POLICY: setups, **roles}[role]]
            starting.append(self._answers(role, task, "start", calls))
        self._data_ranks, *numbers = await asyncio.gather(*starting)
        # Only now: who asks whom follows from the data-parallel ranks, which the layouts have decided.
        for role, own in zip(roles, numbers, strict=True):
            await self._connect(task, role, peers_of(self._data_ranks, own))
        self.device = await within(START_SECONDS, f"{TRAINING} 0", self._actors[POLICY][0].call("device"))

    async def _connect(self, task: _Task, role: str, peers: Sequence[Sequence[Sequence[int]]]) -> None:
        """Tell each worker of `role` how many train workers ask it, and each train worker whom to ask."""
        actors = self._actors[role]
        asked = Counter(number for mine in peers for ranks in mine for number in ranks)
        expected = [(asked[number],) for number in range(len(actors))]
        await self._answers(role, task, "expect", expected)
        workers = [[[actors[number] for number in ranks] for ranks in mine] for mine in peers]
        await self._answers(POLICY, task, "connect", [(role, mine) for mine in workers])

    async def _meeting(self, role: str) -> tuple[str, int]:
        """Host and port where the process group of `role` meets."""
        # torch's store asks for no token: on the loopback, where that will do, no other host reaches it.
        hosts, first_actor = self._hosts[role], self._actors[role][0]
        host = hosts[0] if len(set(hosts)) > 1 else LOOPBACK
        port: int = await within(START_SECONDS, f"{worker_kind(role)} 0", first_actor.call("listen", host))
        return host, port

    @property
    def data_parallel(self) -> int:
        """The number of data-parallel ranks."""
        # Ranks that hold one copy of the model together have the same number.
        return max(self._data_ranks) + 1

    async def watch(self, more: float = 0.0) -> None:
        """Raises `WorkerError` when a worker dies or hangs; never returns."""
        await together(
            self._watch(f"{worker_kind(role)} {rank}", actor, more)
            for role, actors in self._actors.items()
            for rank, actor in enumerate(actors)
        )

    async def _watch(self, name: str, actor: Actor, more: float) -> None:
        try:
            await within(
                None, name, watched(actor, self._limits.worker_health_limit, "--worker-health-limit", more)
            )
        except WorkerError as error:
            raise WorkerError(f"{error}{self._doing()}") from error

    def _doing(self) -> str:
        """A sentence about what the workers do at the moment; empty: nothing."""
        if not self._under_way:
            return ""
        task, since = next(iter(self._under_way.items()))
        return f" It had been at {task.what} for {time.monotonic() - since:.0f} s."

    def _step_task(self, what: str) -> _Task:
        return _Task(what, self._limits.step_timeout, "--step-timeout")

    def _save_task(self, what: str) -> _Task:
        return _Task(what, self._limits.save_timeout, "--save-timeout")

    async def update(
        self,
        shares: Sequence[TrainBatch],
        *,
        step: int,
        first: bool,
        version: int | None,
        scales: Scales,
        keep: bool = False,
    ) -> UpdateResult:
        """Train on one rollout batch, a share for each data-parallel rank, and write weights `version`.

        `version` None: nothing is written. The result of rank 0, with the memory of the ranks that use most;
        `keep`: with columns of the tokens.
        """
        # In a thread: it takes time where the shares are large, and for ever where the cluster hangs.
        assert self._asleep is None, "it trains when it is awake"
        handles = await asyncio.to_thread(lambda: [self._cluster.put(to_arrays(share)) for share in shares])
        async with self._weights_lock:
            self._version = version
            # All ranks of one copy of the model get the same share.
            shared = [handles[number] for number in self._data_ranks]
            calls = [(handle, step, first, version, scales, keep) for handle in shared]
            results = await self._answers(POLICY, self._step_task(f"training step {step}"), "update", calls)
        return with_most_memory(results)

    async def write_weights(self, version: int, *, whole: bool = False) -> WeightsLocation:
        """Lay the present weights down for the engines, as `version` (see `Publisher.write`)."""
        assert self._asleep != "all", "its weights are needed"
        async with self._weights_lock:
            self._version = version
            task = self._save_task(f"writing weights {version}")
            locations = await self._all(task, "write_weights", version, whole)
        return cast(WeightsLocation, locations[0])

    async def probe(self, token_ids: Sequence[int]) -> tuple[list[float], dict[str, list[float]]]:
        """The log-probs of the base, and by policy (`TrainWorker.probe`)."""
        results = await self._all(self._step_task("scoring a probe"), "probe", token_ids)
        scored: tuple[list[float], dict[str, list[float]]] = results[0]
        return scored

    async def broadcast(self, call: str, *arguments: Any) -> Any:
        """Have the publisher of rank 0 answer a call, beside training."""
        answer = self._actors[POLICY][0].call("broadcast", call, *arguments, thread="broadcast")
        return await within(self._limits.save_timeout, f"{TRAINING} 0", answer)

    async def sleep(self, what: SleepLevel) -> int:
        """The models of the train workers leave the devices (`rlcore.Sleeper`).

        Returns the bytes freed on the device where that is most.
        """
        async with self._weights_lock:
            self._asleep = what
            freed: list[int] = await self._all(self._step_task("going to sleep"), "sleep", what)
            return max(freed)

    async def wake(self) -> None:
        """Bring the models back to the devices."""
        async with self._weights_lock:
            if self._asleep is not None:
                await self._all(self._step_task("waking up"), "wake")
                self._asleep = None

    async def pieces(self, version: int, ranks: Sequence[int] = ()) -> AsyncGenerator[Piece, None]:
        """Weights `version` bucket by bucket, each made when it is asked for (`Publisher.pieces`).

        `ranks`: those that send, of all that may; none: all of these.
        Training waits meanwhile. If the trainer sleeps, only the policy's weights come back. OutdatedError if
        the trainer has another version by now.
        """
        async with self._weights_lock:
            if version != self._version:
                raise OutdatedError(f"The trainer has weights {self._version}; asked for were {version}.")
            task = self._save_task(f"publishing weights {version}")
            try:
                # Those that send nothing are asked too: all ranks gather the tensors together.
                made = await self._all(task, "open_weights", ranks)
                while sent := {rank: piece for rank, piece in enumerate(made) if piece is not None}:
                    # The first one that sends is the one that tells the checksums
                    # (`TrainWorker.open_weights`).
                    piece = sent[min(sent)]
                    yield replace(piece, by_rank={rank: sent[rank].content for rank in sent})
                    if piece.is_last:
                        break
                    made = await self._all(task, "next_piece")
            finally:
                # After a publication that took too long, nobody should wait for its ranks once more.
                await self._all(_Task(task.what, CLOSE_SECONDS, ""), "close_weights")

    async def refresh(self, role: str) -> None:
        """Copy the policy into the model of `role`.

        To workers of its own the policy travels as in a checkpoint, which every layout reads. None must be
        under way.
        """
        if role not in self._actors:
            await self._all(self._step_task("copying the policy"), "refresh", role)
            return
        folder = self._folder / REFRESH
        await self.stage([POLICY])
        try:
            await self.write(folder)
            task = self._save_task("reading the policy")
            await self._all(task, "load", role, str(folder / POLICY), role=role)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def stage(self, roles: Sequence[str]) -> None:
        """Copy the state of `roles` to host memory; training may go on afterwards."""
        assert self._asleep is None, "its state is needed"
        task = self._save_task("copying its state for a checkpoint")
        for holder in self._actors:
            held = [role for role in roles if self._holder(role) == holder]
            if held:
                await self._all(task, "stage", held, role=holder)

    async def write(self, folder: Path) -> None:
        """Write what was staged, each role into a folder of its name in `folder`."""
        task = self._save_task("writing a checkpoint")
        for role in self._actors:
            await self._all(task, "write", str(folder), role=role, thread="write")

    async def load(self, folder: Path, roles: Sequence[str]) -> None:
        """Load what `write` wrote."""
        task = self._save_task("loading a checkpoint")
        for role in roles:
            await self._all(task, "load", role, str(folder / role), role=self._holder(role))

    def _holder(self, role: str) -> str:
        """The role whose workers hold `role`: itself, or the policy."""
        return role if role in self._actors else POLICY

    async def stop(self) -> None:
        """Leave the process group in order where that is still possible, then end every worker."""
        leaving = [
            within(STOP_SECONDS, worker_kind(role), actor.call("stop"))
            for role, actors in self._actors.items()
            for actor in actors
        ]
        await asyncio.gather(*leaving, return_exceptions=True)
        self.kill()

    def kill(self) -> None:
        """End every worker at once."""
        for actors in self._actors.values():
            for actor in actors:
                actor.kill()

    async def _all(
        self,
        task: _Task,
        method: str,
        *arguments: Any,
        role: str = POLICY,
        thread: ActorThread | None = None,
    ) -> list[Any]:
        """Ask all workers of `role` the same; their answers, in the order of their ranks."""
        return await self._answers(role, task, method, [arguments] * len(self._actors[role]), thread)

    async def _answers(
        self,
        role: str,
        task: _Task,
        method: str,
        arguments: Sequence[Sequence[Any]],
        thread: ActorThread | None = None,
    ) -> list[Any]:
        """The answers of the workers of `role`, each asked with `arguments` of its own."""
        calls = [
            within(
                task.limit_s,
                f"{worker_kind(role)} {rank}",
                actor.call(method, *given, thread=thread),
                f"did not finish {task.what}",
                task.flag,
            )
            for rank, (actor, given) in enumerate(zip(self._actors[role], arguments, strict=True))
        ]
        self._under_way[task] = time.monotonic()
        try:
            return list(await asyncio.gather(*calls))
        finally:
            # Workers of several roles may be at one task. The first role that is done removes it for all.
            self._under_way.pop(task, None)


def with_most_memory(results: Sequence[UpdateResult]) -> UpdateResult:
    """The first of `results`, with the memory (`perf/`) of those that use most."""
    most = {
        name: max(result.metrics[name] for result in results)
        for name in results[0].metrics
        if name.startswith("perf/")
    }
    return replace(results[0], metrics={**results[0].metrics, **most})
