"""The loop of `--only rollout`: rollouts are made and written, and nobody trains on them."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlcore.api.producer import Producer, Rollout
from rlcore.api.types import Group
from rlcore.learning.batch_file import save_rollout
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_folder import check_folder
from rlcore.preparation.run_state import RunState
from rlcore.rollout.scoring import ScoringEngines
from rlcore.serving.engine_group import EngineGroup
from rlcore.tracking.trace import Trace
from rlcore.tracking.trackers import Trackers
from rlcore_machine.signals import GRACE_S, StopSignals
from rlcore_machine.tasks import until


@dataclass(kw_only=True)
class RolloutLoop:
    """One consumer of rollouts, which writes them. The engines keep the weights of the model's directory.

    `state`: its `version` is that of these weights. `scorer`: engines that score what the policy sampled.
    """

    prepared: Prepared
    producer: Producer
    engines: EngineGroup
    trackers: Trackers
    stop: StopSignals
    state: RunState
    trace: Trace = field(default_factory=Trace)
    scorer: ScoringEngines | None = None

    @property
    def scores(self) -> Mapping[str, float]:
        """What the last evaluation found; empty: nothing is evaluated."""
        return {}

    async def scored(self, rollout: Rollout) -> Sequence[Group]:
        """The groups of `rollout`, with the log-probs of `scorer`."""
        return rollout.groups if self.scorer is None else await self.scorer.score(rollout.groups)

    async def run(self) -> str:
        """Make the rollouts of all steps; the reason of the end."""
        folder = self.prepared.run_dir.stat()
        rollouts = self.producer.run(self.state.step, self.prepared.last_step)
        async with contextlib.aclosing(rollouts):
            while rollout := await until(self.stop.told_to_end, anext(rollouts, None), GRACE_S):
                check_folder(self.prepared.run_dir, folder)
                await self._write(rollout)
                self.trace.flush()
                # No weights change, but an asynchronous producer counts the groups as in progress until now.
                self.state = replace(self.state, step=rollout.step)
                self.producer.published(self.state.version)
                if self.stop.terminating:
                    break
        return "sigterm" if self.stop.terminating else "completed"

    async def _write(self, rollout: Rollout) -> None:
        """Write samples, the batch that training would read, and a row of metrics."""
        step = rollout.step
        groups = await self.scored(rollout)
        if groups and self.prepared.saves_rollout(step):
            batch = await asyncio.to_thread(self.prepared.batch_of, groups, self.state.version)
            await asyncio.to_thread(save_rollout, self.prepared.run_dir, rollout, batch)
        self.trackers.rollout(step, [sample for group in groups for sample in group.samples])
        seconds = max(rollout.metrics["time/rollout_s"], 1e-9)
        self.trackers.metrics(
            {
                "step": step,
                "weight_version": self.state.version,
                **rollout.metrics,
                **self.engines.take_metrics(),
                "time/step_s": rollout.metrics["time/rollout_s"],
                "rollout/tokens_per_s": rollout.metrics["rollout/response_tokens"] / seconds,
            }
        )
