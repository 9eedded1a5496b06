"""`RolloutWorkers`: generators that run in processes of their own, as a producer and evaluations see them.

The driver stays the only one that asks engines and rewards. A call of a generator goes to a worker with its
samples; what the generator asks of its context comes back here, to the context that the producer made. So
gates, versions, aborts and partial rollouts are what they are without workers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcore.api.cluster import Cluster
from rlcore.api.generation import GenerationContext, Generator, GroupGenerator
from rlcore.engines.client import together
from rlcore.rollout.generators import Generators, name_of
from rlcore.runtime.rollout_exchange import Call, Exchange
from rlcore.runtime.rollout_worker import RolloutWorker

if TYPE_CHECKING:
    from rlcore.api.part import Part
    from rlcore.api.plugin_file import PluginFile
    from rlcore.api.run_config import LimitOptions
    from rlcore.api.types import Sample
    from rlcore.runtime.trainer import BundleSlot


class RolloutWorkers:
    """One actor a slot; without any, the generators of the driver are used as they are."""

    def __init__(
        self,
        cluster: Cluster,
        slots: Sequence[BundleSlot],
        generators: Generators,
        *,
        files: Sequence[PluginFile],
        tokenizer: str,
        limits: LimitOptions,
    ) -> None:
        """`generators`: those of the driver, which are built and checked. `tokenizer`: its directory."""
        self._generators = generators
        self._tokenizer = tokenizer
        self._workers = [
            Exchange(
                f"Rollout worker {number}",
                cluster.actor(RolloutWorker, files, gpus=0, bundle=slot.bundle),
                limits.worker_health_limit,
            )
            for number, slot in enumerate(slots)
        ]

    def of(self, part: Part) -> Generator:
        """The generator of `part`, wherever it runs."""
        generator = self._generators.of(part)
        if not self._workers:
            return generator
        kind = _RemoteGroupGenerator if isinstance(generator, GroupGenerator) else _RemoteGenerator
        return kind(self._workers, self._generators.parts.index(part), name_of(generator))

    async def start(self) -> None:
        """Build the generators in every worker."""
        await together(worker.start(self._generators.parts, self._tokenizer) for worker in self._workers)

    async def watch(self) -> None:
        """Raises `WorkerError` when a worker dies or hangs; never returns."""
        if not self._workers:
            await asyncio.Event().wait()
        await together(worker.watch() for worker in self._workers)

    async def stop(self) -> None:
        """Have the generators release what they hold where that is still possible, then end every worker."""
        await asyncio.gather(*(worker.stop() for worker in self._workers), return_exceptions=True)


class _RemoteGenerator:
    """The generator at `place` of the workers' own. One worker makes all samples of a group."""

    def __init__(self, workers: Sequence[Exchange], place: int, name: str) -> None:
        self._workers = workers
        self._place = place
        self.name = name

    async def generate(self, ctx: GenerationContext, sample: Sample) -> Sample | list[Sample]:
        """As `Generator.generate`."""
        is_list, made = await self._made(ctx, [sample], by_group=False)
        return made if is_list else made[0]

    async def _made(
        self, ctx: GenerationContext, samples: Sequence[Sample], *, by_group: bool
    ) -> tuple[bool, list[Sample]]:
        worker = self._workers[samples[0].group_id % len(self._workers)]
        call = Call(self.name, ctx, samples, asyncio.get_running_loop().create_future())
        return await worker.made(call, (self._place, by_group, ctx.sampling, ctx.context_length, samples))


class _RemoteGroupGenerator(_RemoteGenerator):
    async def generate_group(self, ctx: GenerationContext, samples: Sequence[Sample]) -> list[Sample]:
        """As `GroupGenerator.generate_group`."""
        return (await self._made(ctx, samples, by_group=True))[1]
