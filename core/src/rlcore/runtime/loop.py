"""The loop: rollouts come in, weights go out, and everything that a step leaves behind is written."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.callback import RunControl
from rlcore.api.errors import DeltaError, RlcoreError, RunError
from rlcore.api.producer import Rollout
from rlcore.api.roles import ModelKind
from rlcore.api.types import Group
from rlcore.engines.publish_file import WeightsLocation
from rlcore.learning.batch_file import save_rollout
from rlcore.learning.flops import training_flops, with_costs
from rlcore.learning.minibatch import assign_minibatches
from rlcore.preparation.run_folder import CHECKPOINTS, check_folder
from rlcore.rollout.batch import split
from rlcore.rollout.columns import for_trackers
from rlcore.runtime.callbacks import Callbacks, both
from rlcore.runtime.evaluations import EVAL_STEP, Evaluations
from rlcore.runtime.handover import Handover, State
from rlcore.runtime.rollout_loop import RolloutLoop
from rlcore.runtime.saver import Saver
from rlcore.tracking.run_files import METRICS_FILE
from rlcore.tracking.trace import RUN
from rlcore.workers.train_worker import UpdateResult
from rlcore.workers.trainer_group import TrainerGroup
from rlcore_machine.gpus import peak_tflops
from rlcore_machine.signals import GRACE_S, TERMINATED
from rlcore_machine.tasks import end_tasks, until

_log = logging.getLogger(__name__)

DROPPED, FAILED = "rollout/groups_dropped/", "rollout/failed/"
"""The metrics with the reasons begin so: of groups, and of samples that no generator could make."""
STEPS_THAT_MAY_FAIL = 3
"""So many in a row without a sample that has a reward end a run, which would go on and learn nothing."""
_LAST_RESULTS_SECONDS = 60.0
"""What a run that is told to end waits for an evaluation beside training."""


@dataclass(kw_only=True)
class Loop(RolloutLoop):
    """One that trains. `state` is what the next checkpoint holds, but for the producer's part.

    `evaluations`: None where nothing is evaluated.
    """

    trainer: TrainerGroup
    callbacks: Callbacks = field(default_factory=lambda: Callbacks({}))
    evaluations: Evaluations | None = None

    def __post_init__(self) -> None:
        self._run = self.prepared.resolved.run
        self._saved_step = self.state.step
        self._is_checked = False
        self._has_warned = False
        self._steps_that_failed = 0
        self._lengths: list[int] = []
        self._columns: Mapping[str, Mapping[str, Tensor]] = {}
        self._folder = self.prepared.run_dir.stat()
        self._saver = Saver(
            trainer=self.trainer,
            root=self.prepared.run_dir / CHECKPOINTS,
            metrics=self.prepared.run_dir / METRICS_FILE,
            roles=self.prepared.saved_roles,
            keep=self._run.checkpoints.keep_checkpoints,
            saved=self.trackers.checkpoint,
        )
        self._location: WeightsLocation | None = None
        self._probes = self.prepared.probes()
        self.handover = Handover(
            self.trainer, self.engines, shares=self.prepared.shares_memory, sleep=self._run.sleep
        )

    @property
    def scores(self) -> Mapping[str, float]:
        """What the last evaluation found."""
        return {} if self.evaluations is None else self.evaluations.scores

    async def run(self) -> str:
        """Train to the last step; the reason of the end."""
        if self.state.step == 0:
            scores = await self._evaluate(0) if self._run.evaluation.eval_first else {}
            self.trackers.metrics({"step": 0, "weight_version": self.state.version, **scores})
            if scores and (stop := self.callbacks.after_evaluation(0, scores).stop):
                return stop
        rollouts = self.producer.run(self.state.step, self.prepared.last_step)
        try:
            # Both end before the processes do: a generator left to the garbage collector would still ask the
            # engines, and a write that is under way needs the train workers.
            async with self._saver, contextlib.aclosing(rollouts):
                while rollout := await self._next(rollouts):
                    if reason := await self._finish_step(rollout, await self._step(rollout)):
                        break
                else:
                    reason = await self._given_up(rollouts) if self.stop.terminating else "completed"
                if self._saved_step:  # the write of a large model takes a while
                    self.trackers.last_checkpoint(self._saved_step)
            await self._last_results()
        finally:
            if self.evaluations is not None:
                await self.evaluations.stop()
        return reason

    async def _next(self, rollouts: AsyncGenerator[Rollout, None]) -> Rollout | None:
        """None: there is none, or the run is told to end and does not wait for it any longer."""
        # Right after a checkpoint nothing is lost.
        grace_s = 0.0 if 0 < self.state.step == self._saved_step else GRACE_S
        with self.trace.span(RUN, "rollout", step=self.state.step + 1):
            return await until(self.stop.told_to_end, anext(rollouts, None), grace_s)

    async def _given_up(self, rollouts: AsyncGenerator[Rollout, None]) -> str:
        """Save what was trained, without the rollout at hand, whose prompts are drawn again."""
        await rollouts.aclose()  # from then on the producer's state has them
        if self.state.step > self._saved_step:
            await self._save()
        return "sigterm" if self.state.step else TERMINATED

    async def _finish_step(self, rollout: Rollout, row: dict[str, float]) -> str:
        """Refresh copies of the policy, evaluate and save where due; a row is on disk before its checkpoint.

        A checkpoint is written while the next steps are taken; the end of the run waits for it.

        Why the run ends here, before its last step, having saved; empty: it goes on.
        """
        run, step = self._run, self.state.step
        # The write of an earlier checkpoint fails in the background: a full disk ends the run here, not at
        # the next checkpoint.
        self._saver.check()
        check_folder(self.prepared.run_dir, self._folder)
        for name, role in self.prepared.roles.items():
            if role.refresh_every and step % role.refresh_every == 0:
                if role.ranks:  # its new weights are written as a checkpoint is
                    await self._saver.finish()
                async with self.handover.awake(self.producer):
                    await self.trainer.refresh(name)
        if rollout.batch is None:  # else the samples were written by the run that saved the batch
            samples = [sample for group in rollout.groups for sample in group.samples]
            self.trackers.rollout(step, for_trackers(samples, self._columns, self.prepared.columns))
        last = step == self.prepared.last_step
        try:
            wishes = await self._evaluated(row, self.callbacks.after_step(step, row), last=last)
        except RlcoreError:
            await self._save()  # what was trained is not lost with its evaluation
            raise
        self.trace.flush()
        ends = "sigterm" if self.stop.terminating else "" if last else wishes.stop
        every = run.checkpoints.save_every
        if last or ends or wishes.save or (every and step % every == 0):
            await self._save()
        return ends

    async def _evaluated(self, row: dict[str, float], wishes: RunControl, *, last: bool) -> RunControl:
        """Evaluate where due, and write the step's `row`: what callbacks then ask for, beside `wishes`."""
        step, every = self.state.step, self._run.evaluation.eval_every
        due = last or wishes.stop or wishes.evaluate or (every and step % every == 0)
        try:
            if due and self.evaluations is not None and self.evaluations.beside:  # one at a time
                wishes = both(wishes, await self._late_results(wait=True))
            if due and (scores := await self._evaluate(step)):
                row |= scores
                wishes = both(wishes, self.callbacks.after_evaluation(step, scores))
        finally:
            self.trackers.metrics(row)
        wishes = both(wishes, await self._late_results(wait=bool(last or wishes.stop)))
        if wishes.stop:  # what has begun in this very step is told of as well
            await self._late_results(wait=True)
        return wishes

    async def _save(self) -> None:
        self._saved_step = self.state.step
        with self.trace.span(RUN, "checkpoint", step=self.state.step):
            # The producer stands still only while its state is copied, not while the disk is written.
            async with self.producer.suspended():
                producer, callbacks = self.producer.state(), self.callbacks.state()
                self.state = replace(self.state, producer=producer, callbacks=callbacks)
            # Before the trainer wakes: otherwise the engines would rest while the last write ends.
            await self._saver.finish()
            async with self.handover.awake(self.producer):
                await self._saver.save(self.state)

    def _shares(self, rollout: Rollout, groups: Sequence[Group]) -> list[TrainBatch]:
        """A share of the batch for each data-parallel rank. `groups`: of `rollout`, scored by `scorer`.

        A batch that was made here is saved where it is due.
        """
        minibatches = self._run.optimizer.minibatches
        if (batch := rollout.batch) is not None:
            policy_B = batch.per_sample.get("policy")
            numbers, expected = [] if policy_B is None else policy_B.tolist(), len(self._run.policies)
            found = max(numbers, default=0)
            if found > expected or (policy_B is None and expected):
                raise RunError(
                    f"The rollout of step {rollout.step} has samples of {found} further policies; "
                    f"expected the {expected} of the run."
                )
            minibatch_B = assign_minibatches(batch.per_sample["rollout"], minibatches, policy_B)
            batch = batch.with_columns(per_sample={"minibatch": minibatch_B})
        else:
            batch = self.prepared.batch_of(groups, self.state.version)
            if self.producer.samples and self.prepared.saves_rollout(rollout.step):
                save_rollout(self.prepared.run_dir, rollout, batch, self._run.policies)
        if self._run.optimizer.balance == "flops":
            facts = self.prepared.facts
            assert facts is not None, "checked before the run"
            batch = with_costs(batch, facts)
        return split(batch, self.trainer.data_parallel)

    async def _step(self, rollout: Rollout) -> dict[str, float]:
        begin = time.perf_counter()
        step = self.state.step + 1
        metrics: dict[str, float] = {"step": step, "weight_version": self.state.version, **rollout.metrics}
        # Those of the last step are in the order of its samples, and this one may train on nothing.
        self._columns = {}
        if rollout.groups or rollout.batch is not None:
            self._steps_that_failed = 0
            result = await self._update(rollout, step)
            version = self.state.version + 1
            trained = time.perf_counter()
            if result.location is not None:
                await self._deliver(result.location, keep_cache=self._run.asynchrony.on_publish == "in_place")
            metrics |= dict(result.metrics)
            metrics |= self._speed(metrics)
            # The workers write the weights within their update, but that is a part of the publication.
            metrics["time/train_s"] = trained - begin - result.write_seconds
            if self.producer.samples:
                metrics["time/publish_s"] = time.perf_counter() - trained + result.write_seconds
        else:
            # All groups were dropped, so no weights change. The producer still hears that the step is over.
            self._tell_of_nothing(step, rollout.metrics)
            version = self.state.version
            metrics |= {"time/train_s": 0.0, "time/publish_s": 0.0}
            if self.producer.samples:
                self.producer.published(version)
        if self.producer.samples:
            metrics["engine/replaced"] = self.engines.replaced
            metrics |= self.engines.take_metrics()
            for probe in self._probes.values():
                metrics |= probe.take_metrics()
        metrics |= self.handover.take_metrics()
        metrics["time/step_s"] = metrics["time/rollout_s"] + time.perf_counter() - begin
        seconds = max(metrics["time/step_s"], 1e-9)
        metrics["rollout/tokens_per_s"] = metrics["rollout/response_tokens"] / seconds
        self.state = replace(self.state, step=step, version=version)
        return metrics

    def _tell_of_nothing(self, step: int, metrics: Mapping[str, float]) -> None:
        """Warn once of a step that trains on nothing; `RunError` where a run cannot get any sample."""
        why = why_dropped(metrics)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("Step %d trains on nothing: %s.", step, why)
        # A filter drops samples that were scored. If there are none, each has failed, or its reward.
        self._steps_that_failed = 0 if metrics.get("rollout/samples", 1) else self._steps_that_failed + 1
        if self._steps_that_failed == STEPS_THAT_MAY_FAIL:  # one may, where a network is down
            raise RunError(f"{STEPS_THAT_MAY_FAIL} steps in a row had no sample with a reward: {why}.")

    def _speed(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """What each rank computed a second in the optimizer steps, and the share of what its device could.

        Another model that is trained has the same size, so it counts as much as the policy, and so do its
        own ranks.
        """
        prepared, seconds = self.prepared, metrics.get("time/update_s")
        if prepared.facts is None or not seconds:
            return {}
        kind = ModelKind.POLICY
        trained = [spec for spec in prepared.roles.values() if spec.optimizer and spec.kind is not kind]
        # Where the others are trained alone, no policy takes a step. Each policy has its own samples.
        models = any(row > 0 for name, row in metrics.items() if name.endswith("/updates")) + len(trained)
        ranks = self._run.ranks + sum(spec.ranks for spec in trained)
        tflops = models * training_flops(prepared.facts, self._lengths) / seconds / ranks / 1e12
        peak = peak_tflops(self.trainer.device) if prepared.model.dtype == "bf16" else None
        return {"perf/train_tflops": tflops, **({} if peak is None else {"perf/mfu": tflops / peak})}

    async def _update(self, rollout: Rollout, step: int) -> UpdateResult:
        """Train on `rollout`, and write the weights for the engines."""
        with self.trace.span(RUN, "train", step=step):
            groups = await self.scored(rollout)
            handing_over = asyncio.create_task(self.handover.to_trainer())
            try:
                # In a thread: the next rollout's requests are answered meanwhile, however large the batch is.
                shares = await asyncio.to_thread(self._shares, rollout, groups)
                await handing_over
            finally:
                await end_tasks([handing_over])
            self._lengths = [length for share in shares for length in share.lengths.tolist()]
            result = await self.trainer.update(
                shares,
                step=step,
                first=not self._is_checked,
                version=self.state.version + 1 if self.producer.samples else None,
                scales=self.callbacks.scales,
                keep=self.prepared.saves_rollout(step) and rollout.batch is None,
            )
        self._is_checked = True
        self._columns = result.columns
        return result

    async def _evaluate(self, step: int) -> dict[str, float]:
        """The metrics; none yet where other engines evaluate, whose last evaluation has ended."""
        evaluations, version = self.evaluations, self.state.version
        if evaluations is None:
            return {"time/eval_s": 0.0}
        if evaluations.beside:
            await self._publish_for_evaluation()
            evaluations.begin(step, version)
            return {}
        if not self.producer.samples:
            await self.publish()
        # It is given up where the run is told to end, which must save soon.
        return await until(self.stop.told_to_end, evaluations.now(step, version)) or {}

    async def _late_results(self, *, wait: bool) -> RunControl:
        """Tell of an evaluation beside training that has ended; what callbacks ask then."""
        row = await self.evaluations.late(wait=wait) if self.evaluations is not None else {}
        if not row:
            return RunControl()
        self.trackers.metrics({"step": self.state.step, **row})
        return self.callbacks.after_evaluation(int(row[EVAL_STEP]), row)

    async def _last_results(self) -> None:
        """Wait for the evaluation that SIGTERM found under way, once the checkpoint is safe."""
        try:
            async with asyncio.timeout(_LAST_RESULTS_SECONDS):
                await self._late_results(wait=True)
        except (TimeoutError, RlcoreError) as error:
            why = str(error) or f"It did not end within {_LAST_RESULTS_SECONDS:g} seconds of the checkpoint."
            _log.warning("The results of the evaluation beside training are lost: %s", why)

    async def _publish_for_evaluation(self) -> None:
        """The engines that evaluate take up the weights of the present step, which the others have."""
        location, version = self._location, self.state.version
        # A run on given responses publishes nothing on its own.
        if location is None or location.version != version:
            location = await self.trainer.write_weights(version)
        try:
            await self.engines.publish_for_evaluation(location)
        except DeltaError:  # they have not seen every version
            async with self.handover.awake(self.producer):
                whole = await self.trainer.write_weights(version, whole=True)
            await self.engines.publish_for_evaluation(whole)

    async def publish(self) -> None:
        """The engines take up the weights of the present step."""
        # In any other state the trainer is awake.
        if self.handover.state is State.GENERATE:
            await self.handover.to_trainer()
        await self._deliver(await self.trainer.write_weights(self.state.version))

    async def _deliver(self, location: WeightsLocation, *, keep_cache: bool = False) -> None:
        """To all engines; once more, whole, where what has changed is of no use to one."""
        version, self._location = location.version, location
        if self._probes:  # the trainer is awake, and all have one text
            base, found = await self.trainer.probe(self._probes[""].token_ids)
            for name, probe in self._probes.items():
                probe.expect(found[name], base, {one: found[one] for one in found if one != name})
        with self.trace.span(RUN, "publish", version=version):
            async with self.producer.publication(version):
                try:
                    await self.handover.publish(location, keep_cache=keep_cache)
                except DeltaError as error:
                    _log.warning("%s Version %d is published whole instead.", error, version)
                    whole = await self.trainer.write_weights(version, whole=True)
                    self._location = whole
                    # Not by the handover, which is in this state already.
                    await self.engines.publish(whole, keep_cache=keep_cache)
                await self.handover.to_engines()
                for probe in self._probes.values():
                    await self.engines.prove(probe)


def why_dropped(metrics: Mapping[str, float]) -> str:
    """Why a rollout has no groups."""
    if not any(name.startswith(DROPPED) for name in metrics):
        return "no group was made"
    reasons = {name: count for name, count in metrics.items() if name.startswith((DROPPED, FAILED)) and count}
    counted = ", ".join(f"{name}: {count:g}" for name, count in reasons.items())
    return f"all groups were dropped ({counted})"
