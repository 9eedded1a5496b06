"""`RunProcesses`: the processes of one run, from their start to their end."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from rlcore.api.cluster import Cluster
from rlcore.api.columns import Input
from rlcore.api.errors import EngineError, WorkerError
from rlcore.api.generation import GenerationClient, GroupScorer
from rlcore.api.producer import Producer, ProducerContext
from rlcore.api.server_config import frozen_name
from rlcore.api.tracker import RunInfo
from rlcore.compose.secrets import without_secrets
from rlcore.data.cursors import cursor_of
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_state import RunState
from rlcore.rollout.evaluate import Evaluator, NoReward
from rlcore.rollout.scoring import ScoringEngines, TokenScorer, client_of
from rlcore.runtime.callbacks import Callbacks
from rlcore.runtime.evaluations import Evaluations, evaluations, start_rewards
from rlcore.runtime.loop import Loop
from rlcore.runtime.rollout_loop import RolloutLoop
from rlcore.serving.frozen_group import FrozenGroup
from rlcore.serving.placement import Placement, senders, sources_of
from rlcore.serving.serving import Serving
from rlcore.tracking.display import STOPPING, Display
from rlcore.tracking.run_files import RunFiles
from rlcore.tracking.trace import Trace, TracedEngine, TracedRewards
from rlcore.tracking.trackers import Trackers
from rlcore.workers.setup import cpu_threads, role_setups, worker_setups
from rlcore.workers.trainer_group import TrainerGroup
from rlcore_machine import settle_heap, switch_threads_often
from rlcore_machine.reaper import Reaper, scratch
from rlcore_machine.signals import GRACE_S, StopSignals
from rlcore_machine.stalls import stalls_told
from rlcore_machine.tasks import end_tasks, together

_log = logging.getLogger(__name__)

_STALL_SECONDS = 30.0
_IDLE_SECONDS = 60.0
_REASON_SECONDS = 5.0
"""Seconds to wait for a watcher to say why a process died, once the death has been noticed."""
_CLUSTER_SECONDS = 1.0
"""The same for the cluster's watcher."""

T = TypeVar("T")


@dataclass(kw_only=True)
class RunProcesses:
    """`steps`: how many the run has taken; `scores`: those of its last evaluation."""

    prepared: Prepared
    state: RunState
    cluster: Cluster
    reaper: Reaper
    placement: Placement
    display: Display
    steps: int = field(init=False)
    scores: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = self.state.step

    async def run(self) -> str:
        """The whole run; why it ended. What was started is stopped, however it ends."""
        with StopSignals() as stop:
            told = asyncio.ensure_future(self._tell_the_end(stop))
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
                told.cancel()

    async def _tell_the_end(self, stop: StopSignals) -> None:
        await stop.told_to_end.wait()
        self.display.note(
            f"told to end after this step; a rollout that takes {GRACE_S:g} s more is given up. "
            "A second signal ends the run at once."
        )

    async def _run(self, stop: StopSignals) -> str:
        prepared = self.prepared
        # The stack stops in the opposite order: first rewards, then the trainer, and last what serves.
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(scratch(self.reaper))
            self.display.phase("Starting the engines and the train workers")
            sources = sources_of(self.placement, prepared)
            serving = Serving(self.cluster, self.placement, prepared, self.reaper, stack, sources)
            trainer = self._trainer() if prepared.trains else None
            if trainer is not None:
                # Its processes run since it was made, so they end also where the start fails.
                stack.callback(trainer.kill)
            rewards: GroupScorer = NoReward()
            if serving.chosen.rewards and not prepared.resolved.producer.config.makes_batches:
                rewards = await start_rewards(
                    serving.chosen.rewards, serving.chosen, stack, prepared.model.path
                )
            # Whoever starts watches what it starts; here only the cluster itself is watched.
            await self._watched(self._start(serving, trainer, sources))

            def watches() -> list[Awaitable[None]]:
                return [*serving.watches(), *([trainer.watch()] if trainer else [])]

            loop = await self._watched(self._loop(serving, trainer, rewards, stop, stack), *watches())
            with self._tracked(loop, stop) as ended, stalls_told(_tell_stall, _STALL_SECONDS):
                # From here on SIGTERM waits for the step and a checkpoint. Before, there was nothing to save.
                stop.can_save = True
                # Everything is imported and built: later collections need not look through it again.
                settle_heap()
                switch_threads_often()
                # Rollout workers ask engines themselves.
                idle = [] if prepared.rollout_workers else [loop.trace.tell_idle(_log.warning, _IDLE_SECONDS)]
                reason = await self._watched(loop.run(), *watches(), *idle)
                ended.append(reason)
            if trainer is not None:
                await trainer.stop()  # in order; after an error the stack only kills the workers
            return reason

    def _trainer(self) -> TrainerGroup:
        resolved, placement = self.prepared.resolved, self.placement
        # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
        env = {"OMP_NUM_THREADS": str(cpu_threads(resolved.run)), "GOMP_SPINCOUNT": "1500"}
        return TrainerGroup(
            self.cluster,
            placement.workers,
            resolved.plugin_files,
            env,
            placement.roles,
            limits=resolved.run.limits,
        )

    async def _start(
        self, serving: Serving, trainer: TrainerGroup | None, sources: Sequence[Sequence[int]]
    ) -> None:
        """Start all at the same time. If the trainer sleeps, engines start first: they measure the memory."""
        early = {"the engines": serving.engines.start()}
        if self.placement.rollouts:
            early["the rollout workers"] = serving.generators.start()
        if self.prepared.frozen:
            early["the frozen models"] = serving.frozen.start()
        if trainer is not None and self.prepared.resolved.run.sleep != "none":
            await self._shown(early)
            # The train workers build their models on devices that are free then.
            await serving.engines.release()
            early = {}
        if trainer is not None:
            publisher = serving.engines.publisher
            sending = senders(self.placement, publisher, sources)
            threads = cpu_threads(self.prepared.resolved.run)
            setups = worker_setups(self.prepared, publisher, threads, sending, sources)
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
        serving: Serving,
        trainer: TrainerGroup | None,
        rewards: GroupScorer,
        stop: StopSignals,
        stack: contextlib.AsyncExitStack,
    ) -> RolloutLoop:
        """The loop, with the first weights published. Its requests and rewards are traced."""
        prepared, engines = self.prepared, serving.engines
        every = [*engines.clients, *engines.eval_clients]
        trace = Trace(prepared.run_dir, prepared.resolved.run.debug.trace_limit * 2**20, len(every))
        traced = [TracedEngine(client, trace, number) for number, client in enumerate(every)]
        clients, eval_clients = traced[: len(engines.clients)], traced[len(engines.clients) :]
        rewards = TracedRewards(rewards, trace)
        trackers = Trackers({"run folder": RunFiles(), **prepared.trackers}, self.display)
        make: Callable[..., RolloutLoop] = RolloutLoop
        if trainer is None:
            # Nothing is published here: the version of the run is that of the weights which the engines began
            # with.
            self.state = replace(self.state, version=await engines.clients[0].weight_version())
        else:
            engines.connect(trainer)
            make = partial(Loop, trainer=trainer, callbacks=Callbacks(prepared.callbacks))
        loop = make(
            prepared=prepared,
            producer=self._producer(serving, clients, rewards),
            engines=engines,
            trace=trace,
            trackers=trackers,
            stop=stop,
            state=self.state,
        )
        if isinstance(loop, Loop):
            await self._begin(loop)
            if evaluator := await self._evaluator(serving, eval_clients or clients, rewards, stack):
                loop.evaluations = Evaluations(evaluator, trackers, trace, beside=bool(eval_clients))
        if not prepared.resolved.producer.config.makes_batches:
            loop.scorer = await self._scorer(serving.frozen, stack)
        return loop

    async def _begin(self, loop: Loop) -> None:
        """Load the checkpoint, if there is one, and publish the first weights."""
        if self.prepared.resume_from is not None:  # before the publication: engines get the loaded weights
            self.display.phase("Loading the checkpoint")
            await loop.trainer.load(self.prepared.resume_from, self.prepared.saved_roles)
            loop.producer.load(self.state.producer)
            loop.callbacks.load(self.state.callbacks)
        if loop.producer.samples:
            self.display.phase("Publishing the first weights")
            await loop.publish()

    @contextlib.contextmanager
    def _tracked(self, loop: RolloutLoop, stop: StopSignals) -> Iterator[list[str]]:
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
            self.steps, self.scores = loop.state.step, loop.scores
            reason = ended[0] if ended else "failed"
            loop.trace.end(reason)
            loop.trackers.end(reason)

    async def _scorer(self, frozen: FrozenGroup, stack: contextlib.AsyncExitStack) -> ScoringEngines | None:
        """The engines that score what the policy samples; None: there are none."""
        run = self.prepared.resolved.run
        engines: dict[str, TokenScorer] = {}
        for name, url in run.scorers.items():
            if (model := frozen_name(url)) is None:
                engines[name] = await stack.enter_async_context(client_of(run, url))
            else:
                engines[name] = frozen.engine(model)
        return ScoringEngines(engines) if engines else None

    async def _evaluator(
        self,
        serving: Serving,
        clients: Sequence[GenerationClient],
        rewards: GroupScorer,
        stack: contextlib.AsyncExitStack,
    ) -> Evaluator | None:
        prepared, chosen = self.prepared, serving.chosen
        if not serving.evals:
            return None
        pools = [(chosen.rewards, rewards)] if chosen.rewards else []
        return Evaluator(
            run=chosen.run,
            encoder=prepared.encoder,
            clients=clients,
            sets=await evaluations(
                chosen, serving.evals, pools, serving.generators, stack, prepared.model.path
            ),
            in_step=not chosen.run.asynchrony.is_asynchronous,
        )

    def _producer(
        self, serving: Serving, clients: Sequence[GenerationClient], rewards: GroupScorer
    ) -> Producer:
        prepared, resolved = self.prepared, self.prepared.resolved
        context = ProducerContext(
            run=resolved.run,
            cursor=cursor_of(prepared.prompts.train, resolved.run, resolved.source.build()),
            encoder=prepared.encoder,
            clients=clients,
            generator=serving.generators.of(resolved.generator),
            rewards=rewards,
            filters=list(prepared.filters),
            version=self.state.version,
            baseline=Input.GREEDY_REWARD in resolved.needs,
            vocabulary=prepared.hf_config.get("vocab_size"),
        )
        producer: Producer = resolved.producer.build(context=context)
        return producer

    async def _watched(self, work: Awaitable[T], *watches: Awaitable[None]) -> T:
        """What `work` returns. A process that dies ends it with its reason, which one of `watches` raises."""
        main = asyncio.ensure_future(work)
        limit_s = self.prepared.resolved.run.limits.worker_health_limit
        cluster = asyncio.ensure_future(self.cluster.watch(limit_s))
        watchers = [cluster, *(asyncio.ensure_future(watch) for watch in watches)]
        try:
            await asyncio.wait({main, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            has_ended = main.done() and not main.cancelled()
            if has_ended and isinstance(main.exception(), EngineError | WorkerError):
                # The process that died says why; those that were waiting for it don't know.
                seconds = _REASON_SECONDS if watches else _CLUSTER_SECONDS
                await asyncio.wait(watchers, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if any(watcher.done() for watcher in watchers):
                # If the cluster itself ended, that is the reason, and everything else a consequence.
                await asyncio.wait([cluster], timeout=_CLUSTER_SECONDS)
            for watcher in watchers:  # the cluster's is the first, so its reason counts before all others
                if watcher.done() and not watcher.cancelled():
                    watcher.result()
            return await main
        finally:
            await end_tasks([main, *watchers])


def _tell_stall(seconds: float, place: str) -> None:
    _log.warning(
        "For %g s this run has done nothing but %s. What takes so long must be awaited, or called by "
        "asyncio.to_thread: nothing else goes on meanwhile. Two Ctrl-C end the run.",
        seconds,
        place,
    )
