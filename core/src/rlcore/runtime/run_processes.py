"""`RunProcesses`: the processes of one run, from their start to their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from rlcore.api.cluster import Cluster
from rlcore.api.errors import EngineError, WorkerError
from rlcore.api.generation import GenerationClient, GroupScorer
from rlcore.api.inputs import Input
from rlcore.api.producer import Producer, ProducerContext
from rlcore.api.server_config import frozen_name
from rlcore.api.tracker import RunInfo
from rlcore.compose.secrets import without_secrets
from rlcore.data.cursors import cursor_of
from rlcore.rollout.evaluate import Evaluator, NoReward
from rlcore.rollout.teacher import TeacherEngine, TokenScorer, client_of
from rlcore.runtime.callbacks import Callbacks
from rlcore.runtime.engines import EngineGroup
from rlcore.runtime.evals import Evaluations, evaluations, start_rewards
from rlcore.runtime.frozen import FrozenGroup
from rlcore.runtime.loop import Loop
from rlcore.runtime.placement import Placement, senders, sources_of
from rlcore.runtime.prepared import Prepared
from rlcore.runtime.rollout_loop import RolloutLoop
from rlcore.runtime.rollout_workers import RolloutWorkers
from rlcore.runtime.saved_rollouts import SavedRollouts
from rlcore.runtime.setup import cpu_threads, role_setups, saved_roles, worker_setups
from rlcore.runtime.signals import StopSignals
from rlcore.runtime.state import RunState
from rlcore.runtime.trainer import TrainerGroup
from rlcore.tasks import together
from rlcore.tracking.trace import Trace, TracedEngine, TracedRewards
from rlcore.tracking.trackers import Trackers
from rlcore_machine import settle_heap
from rlcore_machine.reaper import Reaper, scratch

if TYPE_CHECKING:
    from rlcore.compose.resolved import Resolved
    from rlcore.runtime.evals import PreparedEval
    from rlcore.tracking.display import Display

STOPPING = "Stopping what was started"

_REASON_SECONDS = 5.0
"""Seconds to wait for a watcher to say why a process died, once the death has been noticed."""
_CLUSTER_SECONDS = 1.0
"""The same for the cluster's watcher."""


@dataclass(kw_only=True)
class RunProcesses:
    """`steps`: how many the run has taken; `scores`: those of its last evaluation."""

    prepared: Prepared
    state: RunState
    cluster: Cluster
    reaper: Reaper
    placement: Placement
    display: Display
    generators: RolloutWorkers = field(init=False)
    steps: int = field(init=False)
    scores: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = self.state.step

    async def run(self) -> str:
        """The whole run; why it ended. What was started is stopped, however it ends."""
        with StopSignals() as stop:
            main = asyncio.ensure_future(self._run(stop))
            interrupted = asyncio.ensure_future(stop.interrupted.wait())
            try:
                await asyncio.wait({main, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if main.done():  # a run that ends by itself in the same moment was not interrupted
                    return main.result()
                self.display.phase(STOPPING)
                main.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await main
                return stop.reason
            finally:
                interrupted.cancel()

    async def _run(self, stop: StopSignals) -> str:
        prepared, placement, resolved = self.prepared, self.placement, self.prepared.resolved
        # The stack stops in the opposite order: first rewards and generators, then the trainer, and last the
        # engines, which the others may still ask.
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(scratch(self.reaper))
            self.display.phase("Starting the engines and the train workers")
            sources = sources_of(placement, prepared)
            engines = EngineGroup(self.cluster, placement.engines, prepared, self.reaper, sources)
            stack.push_async_callback(engines.stop)
            frozen = FrozenGroup(self.cluster, placement.frozen, prepared, engines.spares)
            stack.push_async_callback(frozen.stop)
            resolved = frozen.placed(resolved) if prepared.frozen else resolved
            threads = cpu_threads(resolved.run)
            # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
            env = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1500"}
            trainer: TrainerGroup | None = None
            if prepared.trains:
                trainer = TrainerGroup(
                    self.cluster,
                    placement.workers,
                    resolved.plugin_files,
                    env,
                    placement.roles,
                    limits=resolved.run.limits,
                )
                stack.callback(trainer.kill)
            self.generators = RolloutWorkers(
                self.cluster,
                placement.rollouts,
                prepared.generators,
                files=resolved.plugin_files,
                tokenizer=prepared.model.path,
                limits=resolved.run.limits,
            )
            stack.push_async_callback(self.generators.stop)
            rewards: GroupScorer = NoReward()
            if resolved.rewards and not prepared.rollouts:
                rewards = await start_rewards(resolved.rewards, resolved, stack, prepared.model.path)
            await self._start(engines, frozen, trainer, threads)
            stack.push_async_callback(prepared.generators.close)
            limit = resolved.run.debug.trace_limit * 2**20
            every = [*engines.clients, *engines.eval_clients]
            trace = Trace(prepared.run_dir, limit, len(every))
            traced = [TracedEngine(client, trace, number) for number, client in enumerate(every)]
            clients, eval_clients = traced[: len(engines.clients)], traced[len(engines.clients) :]
            rewards = TracedRewards(rewards, trace)
            loop: Loop | RolloutLoop
            if trainer is None:
                self.state = replace(self.state, version=await engines.clients[0].weight_version())
                loop = RolloutLoop(
                    prepared=prepared,
                    producer=self._producer(clients, rewards),
                    engines=engines,
                    trace=trace,
                    trackers=Trackers(prepared.trackers, self.display),
                    stop=stop,
                    state=self.state,
                )
            else:
                engines.connect(trainer)
                loop = await self._loop(engines, trainer, self._producer(clients, rewards), trace, stop)
                evals, beside = frozen.placed_evals(prepared.evals), bool(eval_clients)
                if evaluator := await self._evaluator(
                    eval_clients or clients, rewards, resolved, evals, stack
                ):
                    loop.evaluations = Evaluations(evaluator, loop.trackers, trace, beside=beside)
            if not prepared.rollouts:
                loop.teacher = await self._teacher(frozen, stack)
            watches = [
                engines.watch(),
                frozen.watch(),
                self.generators.watch(),
                *([trainer.watch()] if trainer else []),
            ]
            with self._tracked(loop, stop) as ended:
                stop.can_save = True
                settle_heap()
                reason = await self._watched(loop, *watches)
                ended.append(reason)
            if trainer is not None:
                await trainer.stop()  # in order; after an error the stack only kills the workers
            return reason

    async def _start(
        self, engines: EngineGroup, frozen: FrozenGroup, trainer: TrainerGroup | None, threads: int
    ) -> None:
        """Start all at the same time. If the trainer sleeps, engines start first: they measure the memory."""
        early = {"the engines": engines.start()}
        if self.placement.rollouts:
            early["the rollout workers"] = self.generators.start()
        if self.prepared.frozen:
            early["the frozen models"] = frozen.start()
        if trainer is not None and self.prepared.resolved.run.sleep != "none":
            await self._shown(early)
            await engines.release()
            early = {}
        if trainer is not None:
            sources = sources_of(self.placement, self.prepared)
            sending = senders(self.placement, engines.publisher, sources)
            setups = worker_setups(self.prepared, engines.publisher, threads, sending, sources)
            early["the train workers"] = trainer.start(setups, role_setups(setups))
        await self._shown(early)

    async def _shown(self, starting: Mapping[str, Awaitable[None]]) -> None:
        """Wait for all, and show which of them are not ready yet."""
        left = list(starting)

        async def start(name: str, awaitable: Awaitable[None]) -> None:
            await awaitable
            left.remove(name)
            if left:
                self.display.phase(f"Waiting for {' and '.join(left)}")

        await together(start(name, awaitable) for name, awaitable in starting.items())

    async def _loop(
        self,
        engines: EngineGroup,
        trainer: TrainerGroup,
        producer: Producer,
        trace: Trace,
        stop: StopSignals,
    ) -> Loop:
        prepared, state = self.prepared, self.state
        resolved, callbacks = prepared.resolved, Callbacks(prepared.callbacks)
        if prepared.resume_from is not None:  # before the first publication: engines get the loaded weights
            self.display.phase("Loading the checkpoint")
            await trainer.load(prepared.resume_from, saved_roles(resolved))
            producer.load(state.producer)
            callbacks.load(state.callbacks)
        loop = Loop(
            prepared=prepared,
            producer=producer,
            trainer=trainer,
            engines=engines,
            trackers=Trackers(prepared.trackers, self.display),
            callbacks=callbacks,
            trace=trace,
            stop=stop,
            state=state,
        )
        if producer.samples:
            self.display.phase("Publishing the first weights")
            await loop.publish()
        return loop

    @contextlib.contextmanager
    def _tracked(self, loop: Loop | RolloutLoop, stop: StopSignals) -> Iterator[list[str]]:
        """The trackers hear of the beginning and the end. The caller puts the reason into the list."""
        prepared, resolved = self.prepared, self.prepared.resolved
        ended: list[str] = []
        try:
            loop.trackers.start(
                RunInfo(
                    folder=prepared.run_dir,
                    settings=without_secrets(resolved.flat()),
                    plugins={info.name: info.version for info in resolved.plugins},
                    step=self.state.step,
                    decode=partial(prepared.encoder.tokenizer.decode, skip_special_tokens=False),
                )
            )
            yield ended
        except asyncio.CancelledError:
            ended.append(stop.reason)
            raise
        finally:
            reason = ended[0] if ended else "failed"
            loop.trace.end(reason)
            loop.trackers.end(reason)

    async def _teacher(self, frozen: FrozenGroup, stack: contextlib.AsyncExitStack) -> TeacherEngine | None:
        """The teachers that are engines; None: there are none."""
        run = self.prepared.resolved.run
        engines: dict[str, TokenScorer] = {}
        for name, url in run.teacher.teachers:
            model = frozen_name(url)
            engines[name] = (
                await stack.enter_async_context(client_of(run, url))
                if model is None
                else frozen.engine(model)
            )
        return TeacherEngine(engines) if engines else None

    async def _evaluator(
        self,
        clients: Sequence[GenerationClient],
        rewards: GroupScorer,
        resolved: Resolved,
        evals: Sequence[PreparedEval],
        stack: contextlib.AsyncExitStack,
    ) -> Evaluator | None:
        """`resolved`, `evals`: their rewards already have the URLs of the frozen models."""
        prepared = self.prepared
        if not evals:
            return None
        pools = [(resolved.rewards, rewards)] if resolved.rewards else []
        return Evaluator(
            run=resolved.run,
            encoder=prepared.encoder,
            clients=clients,
            sets=await evaluations(resolved, evals, pools, self.generators, stack, prepared.model.path),
            in_step=not resolved.run.asynchrony.is_asynchronous,
        )

    def _producer(self, clients: Sequence[GenerationClient], rewards: GroupScorer) -> Producer:
        prepared, resolved = self.prepared, self.prepared.resolved
        if prepared.rollouts:
            return SavedRollouts(
                files=prepared.rollouts,
                minibatches=resolved.run.optimizer.minibatches,
                vocabulary=int(prepared.hf_config["vocab_size"]),
            )
        context = ProducerContext(
            run=resolved.run,
            cursor=cursor_of(prepared.prompts.train, resolved.run, resolved.source.build()),
            encoder=prepared.encoder,
            clients=clients,
            generator=self.generators.of(resolved.generator),
            rewards=rewards,
            filters=[part.build() for part in resolved.filters],
            version=self.state.version,
            baseline=Input.GREEDY_REWARD in resolved.needs,
        )
        producer: Producer = resolved.producer.build(context=context)
        return producer

    async def _watched(self, loop: Loop | RolloutLoop, *watched: Awaitable[None]) -> str:
        """Run the loop; a process that dies, which ends one of `watched`, ends it with its reason."""
        main = asyncio.ensure_future(loop.run())
        limit_s = self.prepared.resolved.run.limits.worker_health_limit
        cluster = asyncio.ensure_future(self.cluster.watch(limit_s))
        watchers = [cluster, *(asyncio.ensure_future(awaitable) for awaitable in watched)]
        try:
            await asyncio.wait({main, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if (
                main.done()
                and not main.cancelled()
                and isinstance(main.exception(), EngineError | WorkerError)
            ):
                # The process that died says why; those that were waiting for it don't know.
                await asyncio.wait(watchers, timeout=_REASON_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if any(watcher.done() for watcher in watchers):
                # If the cluster itself ended, that is the reason, and everything else a consequence.
                await asyncio.wait([cluster], timeout=_CLUSTER_SECONDS)
            for watcher in watchers:  # the cluster's is the first, so its reason counts before all others
                if watcher.done() and not watcher.cancelled():
                    watcher.result()
            return await main
        finally:
            self.steps, self.scores = loop.state.step, loop.scores
            for task in (main, *watchers):
                task.cancel()
            await asyncio.gather(main, *watchers, return_exceptions=True)
