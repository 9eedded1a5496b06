"""`train`: one run from its configuration to its summary."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore import heap
from rlcore.checkpoint.folder import newest_complete, read_marker
from rlcore.config import toml
from rlcore.data.responses import ResponseEncoder
from rlcore.errors import CheckpointError, EngineError, RunError, WorkerError
from rlcore.inputs import Input
from rlcore.plugins.files import write_all
from rlcore.rollout.context import Scorer
from rlcore.rollout.evaluate import Evaluator, NoReward
from rlcore.rollout.given import GivenProducer
from rlcore.rollout.produce import Producer
from rlcore.rollout.rewards import RewardPool
from rlcore.rollout.teacher import TeacherEngine
from rlcore.runtime import provenance
from rlcore.runtime.cluster import Cluster, connect
from rlcore.runtime.engines import EngineGroup
from rlcore.runtime.evals import evaluations
from rlcore.runtime.loop import Loop
from rlcore.runtime.placement import Placement, critic_ranks, place
from rlcore.runtime.prepare import left_out, prepare
from rlcore.runtime.prepared import Prepared
from rlcore.runtime.provenance import fingerprints, versions
from rlcore.runtime.run_folder import CHECKPOINTS, PLUGINS, run_folder, writing
from rlcore.runtime.setup import cpu_threads, saved_roles, worker_setups
from rlcore.runtime.signals import StopSignals, sigterm_raises
from rlcore.runtime.state import RUN_TOML, RunState
from rlcore.runtime.trainer import TrainerGroup
from rlcore.tracking.summary import Summary
from rlcore.tracking.tracker import Tracker
from rlcore.trains_on import TrainsOn

if TYPE_CHECKING:
    from rlcore.compose.resolved import Resolved
    from rlcore.tracking.console import Display


def train(
    resolved: Resolved, *, run_dir: Path, resume: Path | None, ray_address: str | None, console: Display
) -> Summary:
    """Run it, in the main thread.

    `resume`: the run folder (then `run_dir` is the same) whose newest checkpoint goes on.

    Raises `UserError` before any process is started, `RunError` afterwards, `Terminated` or KeyboardInterrupt
    for a signal that comes before the processes; in every case everything that was started is stopped.
    """
    begin = time.monotonic()
    with sigterm_raises(), contextlib.ExitStack() as stack:
        with run_folder(run_dir, resume is not None) as folder:
            console.phase("Checking the model, the data and the parts")
            checkpoint = _checkpoint(folder) if resume is not None else None
            prepared = prepare(resolved, folder.resolve(), checkpoint)
            if note := left_out(prepared.hf_config):
                console.note(note)
            state = _first_state(prepared) if checkpoint is None else _resumed_state(prepared, checkpoint)
            if checkpoint is not None and (note := provenance.changed(state.versions, versions(resolved))):
                console.note(note)
            state = replace(state, versions=versions(resolved))
            _write_settings(folder, resolved)
            console.phase("Starting Ray")
            run = resolved.run
            cpus = run.ranks + critic_ranks(run) + prepared.engines + 1
            cluster = stack.enter_context(connect(ray_address, cpus=cpus, gpus=torch.cuda.device_count()))
            placement = place(cluster, prepared)
        session = _Session(
            prepared=prepared, state=state, cluster=cluster, placement=placement, console=console
        )

        def summary(reason: str) -> Summary:
            seconds = round(time.monotonic() - begin, 3)
            return Summary(str(run_dir), session.steps, seconds, session.scores, reason)

        try:
            reason = asyncio.run(session.run())
        except RunError:
            console.fail(summary("failed"))
            raise
    return summary(reason)


_REASON_SECONDS = 5.0
"""Time for a watcher to say why a process died, once its absence is felt."""


@dataclass(kw_only=True)
class _Session:
    """The processes of one run, from their start to their end."""

    prepared: Prepared
    state: RunState
    cluster: Cluster
    placement: Placement
    console: Display
    steps: int = 0
    scores: Mapping[str, float] = field(default_factory=dict)

    async def run(self) -> str:
        with StopSignals() as stop:
            main = asyncio.ensure_future(self._run(stop))
            interrupted = asyncio.ensure_future(stop.interrupted.wait())
            try:
                await asyncio.wait({main, interrupted}, return_when=asyncio.FIRST_COMPLETED)
                if main.done():
                    return main.result()
                main.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await main
                return stop.reason
            finally:
                interrupted.cancel()

    async def _run(self, stop: StopSignals) -> str:
        prepared, placement, resolved = self.prepared, self.placement, self.prepared.resolved
        async with contextlib.AsyncExitStack() as stack:
            self.console.phase("Starting the engines and the train workers")
            engines = EngineGroup(self.cluster, placement.engines, prepared)
            stack.push_async_callback(engines.stop)
            threads = cpu_threads(resolved.run)
            # Trainer and engine take turns on the same cores: who waits spins for microseconds only.
            env = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "1500"}
            trainer = TrainerGroup(
                self.cluster, placement.workers, resolved.plugin_files, env, placement.critics
            )
            stack.callback(trainer.kill)
            rewards: Scorer = NoReward()
            if resolved.rewards:
                pool = RewardPool(
                    resolved.rewards,
                    workers=resolved.run.reward_workers,
                    timeout=resolved.run.reward_timeout,
                    plugin_files=resolved.plugin_files,
                )
                stack.callback(pool.stop)
                await asyncio.to_thread(pool.start)
                rewards = pool
            setups = worker_setups(prepared, engines.publisher, threads)
            await _all_or_first_error(engines.start(), trainer.start(setups))
            engines.connect(trainer)
            stack.push_async_callback(prepared.generators.close)
            loop = await self._loop(engines, trainer, rewards, stop)
            loop.evaluator = await self._evaluator(engines, rewards, stack)
            if resolved.run.teacher_url:
                loop.teacher = TeacherEngine(resolved.run)
                stack.push_async_callback(loop.teacher.close)
            with loop.tracker:
                stop.can_save = True
                heap.settle()
                reason = await self._watched(loop, engines, trainer)
            await trainer.stop()
            return reason

    async def _loop(
        self, engines: EngineGroup, trainer: TrainerGroup, rewards: Scorer, stop: StopSignals
    ) -> Loop:
        prepared, state = self.prepared, self.state
        resolved = prepared.resolved
        producer = self._producer(engines, rewards)
        if prepared.resume_from is not None:
            self.console.phase("Loading the checkpoint")
            await trainer.load(prepared.resume_from, saved_roles(resolved))
            producer.load(state.producer)
        tracker = Tracker(prepared.run_dir, self.console, resumed_step=state.step)
        loop = Loop(
            prepared=prepared,
            producer=producer,
            trainer=trainer,
            engines=engines,
            tracker=tracker,
            stop=stop,
            state=state,
        )
        if producer.samples:
            self.console.phase("Publishing the first weights")
            await loop.publish()
        return loop

    async def _evaluator(
        self, engines: EngineGroup, rewards: Scorer, stack: contextlib.AsyncExitStack
    ) -> Evaluator | None:
        prepared, resolved = self.prepared, self.prepared.resolved
        if not prepared.evals:
            return None
        pools = [(resolved.rewards, rewards)] if resolved.rewards else []
        return Evaluator(
            run=resolved.run,
            encoder=prepared.encoder,
            clients=engines.clients,
            sets=await evaluations(resolved, prepared.evals, pools, prepared.generators, stack),
            in_step=not resolved.run.is_asynchronous,
        )

    def _producer(self, engines: EngineGroup, rewards: Scorer) -> Producer | GivenProducer:
        prepared, resolved = self.prepared, self.prepared.resolved
        if resolved.trains_on is not TrainsOn.ROLLOUTS:
            return GivenProducer(
                run=resolved.run,
                prompts=prepared.prompts.train,
                encoder=ResponseEncoder(prepared.encoder, resolved.run.max_response_tokens),
            )
        return Producer(
            run=resolved.run,
            prompts=prepared.prompts.train,
            encoder=prepared.encoder,
            clients=engines.clients,
            generator=prepared.generators.of(resolved.generator),
            rewards=rewards,
            filters=[part.build() for part in resolved.filters],
            version=self.state.version,
            baseline=Input.GREEDY_REWARD in resolved.needs,
        )

    async def _watched(self, loop: Loop, engines: EngineGroup, trainer: TrainerGroup) -> str:
        """Run the loop; a process that dies ends it with its reason."""
        main = asyncio.ensure_future(loop.run())
        watchers = [asyncio.ensure_future(engines.watch()), asyncio.ensure_future(trainer.watch())]
        try:
            await asyncio.wait({main, *watchers}, return_when=asyncio.FIRST_COMPLETED)
            if (
                main.done()
                and not main.cancelled()
                and isinstance(main.exception(), EngineError | WorkerError)
            ):
                # What died says why; what was waiting for it does not.
                await asyncio.wait(watchers, timeout=_REASON_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for watcher in watchers:
                if watcher.done() and not watcher.cancelled():
                    watcher.result()
            return await main
        finally:
            self.steps, self.scores = loop.state.step, loop.scores
            for task in (main, *watchers):
                task.cancel()
            await asyncio.gather(main, *watchers, return_exceptions=True)


async def _all_or_first_error(*awaitables: Any) -> None:
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _write_settings(folder: Path, resolved: Resolved) -> None:
    """The run's own copy of its plugin files, and its settings, which name those by their place in `folder`.

    A resumed run's file is replaced whole or not at all.
    """
    file, copies = folder / RUN_TOML, folder / PLUGINS
    draft = file.with_name(f"{file.name}.partial")
    flat = resolved.flat()
    if resolved.plugin_files:
        with writing(copies):
            write_all(resolved.plugin_files, copies)
        flat["plugin"] = [f"{PLUGINS}/{plugin.name}" for plugin in resolved.plugin_files]
    with writing(file):
        draft.write_text(toml.dump(flat))
        draft.replace(file)


def _checkpoint(run_dir: Path) -> Path:
    found = newest_complete(run_dir / CHECKPOINTS)
    if found is None:
        raise CheckpointError(
            f"--resume {run_dir}: it holds no complete checkpoint in {CHECKPOINTS}/; "
            "start anew, with --save-every."
        )
    read_marker(found)
    return found


def _first_state(prepared: Prepared) -> RunState:
    resolved = prepared.resolved
    return RunState(step=0, version=0, producer={}, model=_identity(prepared), data=fingerprints(resolved))


def _resumed_state(prepared: Prepared, checkpoint: Path) -> RunState:
    state = RunState.read(checkpoint)
    model = _identity(prepared)
    for key in sorted(set(model) | set(state.model)):
        if model.get(key) != state.model.get(key):
            raise CheckpointError(
                f"{checkpoint}: its model has {key} {state.model.get(key)!r}, and the run's model "
                f"{model.get(key)!r}."
            )
    if state.step >= prepared.resolved.run.steps:
        raise CheckpointError(
            f"{checkpoint}: already at step {state.step} of {prepared.resolved.run.steps}; "
            "raise --steps to go on."
        )
    for name, now in versions(prepared.resolved).items():
        if now.startswith("sha256:") and state.versions.get(name, now) != now:
            raise CheckpointError(f"{checkpoint}: the content of the {name} has changed since.")
    for path, now in fingerprints(prepared.resolved).items():
        if state.data.get(path, now) != now:
            raise CheckpointError(
                f"{path}: its content has changed since the run was started, and the run's place in it means "
                "nothing now; bring the old file back, or start a new run."
            )
    return state


def _identity(prepared: Prepared) -> dict[str, Any]:
    keys = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return {key: prepared.hf_config.get(key) for key in keys} | {"dtype": prepared.model.dtype}
