"""`RolloutWorkers`: generators that run in processes of their own, as a producer and evaluations see them.

The driver stays the only one that asks engines and rewards. A call of a generator goes to a worker with its
samples; what the generator asks of its context comes back here, to the context that the producer made. So
gates, versions, aborts and partial rollouts are what they are without workers.
"""

import asyncio
import logging
import pickle
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.api.cluster import Actor, Cluster
from rlcore.api.errors import RlcoreError, WorkerError, one_line
from rlcore.api.generation import Completion, GenerationContext, Generator, GroupGenerator, Request
from rlcore.api.part import Part
from rlcore.api.plugin_file import PluginFile
from rlcore.api.run_config import LimitOptions
from rlcore.api.types import Sample
from rlcore.rollout.generators import Generators, name_of
from rlcore.workers.actors import FIRST_SECONDS, watched, within
from rlcore.workers.rollout_messages import FromDriver, Message, changed, changes_of
from rlcore.workers.rollout_worker import RolloutWorker, pickled_error
from rlcore.workers.trainer_group import BundleSlot
from rlcore_machine.tasks import end_tasks, first, together

START_SECONDS = 600.0
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Call:
    """A call of the generator `name`. `ended`: the worker's last word of it."""

    name: str
    ctx: GenerationContext
    samples: Sequence[Sample]
    ended: asyncio.Future[Message]

    async def complete(self, request: Request) -> Sequence[Completion]:
        """The completions that its context gives."""
        return await self.ctx.generate(request)

    async def score(self, changes: Sequence[Any]) -> Sequence[Any]:
        """The same, as changes of what was given."""
        samples = changed(changes, self.samples)
        return changes_of(await self.ctx.score(samples), samples)


class Exchange:
    """The messages from and to one rollout worker, whose actor it starts and ends."""

    def __init__(self, name: str, actor: Actor, limit_s: float) -> None:
        """`limit_s`: for a sign of life, and for the end of a call that was cancelled."""
        self._name = name
        self._actor = actor
        self._limit_s = limit_s
        self._calls: dict[int, Call] = {}
        # Calls are numbered here. The requests that generators make, below, are numbered by the worker.
        self._number = 0
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._unsent: list[Message] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failure: RlcoreError | None = None
        self._failed = asyncio.Event()

    async def start(self, parts: Sequence[Part], tokenizer: str) -> None:
        """Build the generators of `parts`."""
        call = self._actor.call("start", parts, tokenizer)
        await first([within(START_SECONDS, self._name, call, "did not start"), self._alive(FIRST_SECONDS)])
        self._tasks["receive"] = asyncio.create_task(self._guarded(self._receive()))

    async def made(self, call: Call, content: Any) -> tuple[bool, list[Sample]]:
        """The samples that a generator makes, and whether it gave a list. Raises what it raised."""
        if self._failure is not None:
            raise self._failure
        self._number += 1
        number = self._number
        self._calls[number] = call
        try:
            self._send("generate", number, pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
            message = await self._end_of(number, call)
        finally:
            del self._calls[number]
        value = pickle.loads(message.content)
        if message.what == "failed":
            raise value
        is_list, changes = value
        return is_list, changed(changes, call.samples)

    async def watch(self) -> None:
        """Raises `WorkerError` when the worker dies or hangs; never returns."""

        async def failure() -> None:
            await self._failed.wait()
            assert self._failure is not None, "it is set before"
            raise self._failure

        await together([self._alive(), failure()])

    async def _alive(self, more: float = 0.0) -> None:
        await within(None, self._name, watched(self._actor, self._limit_s, "--worker-health-limit", more))

    async def stop(self) -> None:
        """Stop it in order where that is still possible, then end it."""
        try:
            if self._tasks and self._failure is None:
                await within(STOP_SECONDS, self._name, self._actor.call("stop", thread="stop"))
        finally:
            self._actor.kill()
            await end_tasks([*self._tasks.values(), *self._answering.values()])

    async def _end_of(self, number: int, call: Call) -> Message:
        """The worker's last word of the call; cancelled meanwhile, the generator is cancelled there too."""
        loop, deadline = asyncio.get_running_loop(), None
        # The caller may be cancelled more than once while the generator in the worker still ends.
        while not call.ended.done():
            try:
                left = None if deadline is None else max(0.0, deadline - loop.time())
                await asyncio.wait({call.ended}, timeout=left)
            except asyncio.CancelledError:
                deadline = deadline or loop.time() + self._limit_s
                self._send("cancel", number)
                continue
            if not call.ended.done():
                self._fail(
                    WorkerError(
                        f"{self._name} did not end the generator {call.name}, which was cancelled, within "
                        f"{self._limit_s:g} s (--worker-health-limit): it holds up all others there."
                    )
                )
                return call.ended.result()
        if deadline is not None:
            call.ended.exception()  # nobody else asks
            raise asyncio.CancelledError
        return call.ended.result()

    def _send(self, what: FromDriver, number: int, content: bytes = b"") -> None:
        """Messages of one turn of the event loop, and those until the last ones have arrived, go together."""
        self._unsent.append(Message(what, number, content))
        if "send" not in self._tasks or self._tasks["send"].done():
            self._tasks["send"] = asyncio.create_task(self._guarded(self._deliver()))

    async def _deliver(self) -> None:
        while self._unsent:
            messages, self._unsent = self._unsent, []
            await within(self._limit_s, self._name, self._actor.call("put", messages))

    async def _receive(self) -> None:
        while True:
            # Without a limit: `watch` tells of a process that is stopped.
            for message in await within(None, self._name, self._actor.call("take", thread="take")):
                self._handle(message)

    def _handle(self, message: Message) -> None:
        what, number, content = message
        if what in ("made", "failed"):
            call = self._calls.get(number)
            if call is not None and not call.ended.done():
                call.ended.set_result(message)
        elif what == "withdraw":
            if (answering := self._answering.get(number)) is not None:
                asyncio.get_running_loop().call_soon(answering.cancel)  # it begins first, so it is forgotten
        elif what == "log":
            logger, level, text = pickle.loads(content)
            logging.getLogger(logger).log(level, "%s", text)
        else:
            self._answering[number] = asyncio.create_task(self._answer(message))

    async def _answer(self, message: Message) -> None:
        name = ""
        try:
            number, *arguments = pickle.loads(message.content)
            call = self._calls.get(number)
            if call is None:
                return  # the exchange has failed, so nobody waits for it
            name = call.name
            ask = call.complete if message.what == "complete" else call.score
            content = pickle.dumps(await ask(*arguments), pickle.HIGHEST_PROTOCOL)
            self._send("answer", message.number, content)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # it was withdrawn
            # Not withdrawn: the generator in the worker still waits, also where what it asked was cancelled.
            self._send("failure", message.number, pickled_error(error, name))
        finally:
            del self._answering[message.number]

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """An error of `work` ends the exchange."""
        try:
            await work
        except RlcoreError as error:
            self._fail(error)
        except Exception as error:
            self._fail(WorkerError(f"{self._name} failed: {one_line(error)}."))

    def _fail(self, error: RlcoreError) -> None:
        """No call of this worker can be made any more."""
        # The first error is the cause, and later ones follow from it.
        self._failure = self._failure or error
        self._failed.set()
        for call in self._calls.values():
            if not call.ended.done():
                call.ended.set_exception(self._failure)


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
        # Of the kind that it stands for: who calls it asks whether it makes whole groups.
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
        """Implements `Generator.generate`."""
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
        """Implements `GroupGenerator.generate_group`."""
        return (await self._made(ctx, samples, by_group=True))[1]
