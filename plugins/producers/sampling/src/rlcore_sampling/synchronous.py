"""Synchronous rollouts: round after round of prompts, in an order that repeats."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rlcore import Draw, EngineContext, GroupOutcome, Rollout, Versions
from rlcore_sampling.sampling_producer import SamplingProducer
from rlcore_sampling.tally import Tally


class SynchronousRollouts(SamplingProducer):
    """Makes the rollout of a step with the weights that the engines hold, and nothing beyond it.

    All requests of a round begin together, and the next round begins when all have ended. So the engines
    compute the same batches in every run, and every number repeats. `AsynchronousRollouts` starts a group as
    soon as there is room for it, so its batches differ, also with a bound of 0.
    """

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`, each made when it is asked for."""
        for step in range(done + 1, steps + 1):
            yield await self._rollout(step, self._version)

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        """The engines take up `version` within."""
        yield
        self.published(version)

    def published(self, version: int) -> None:
        """The engines hold `version`."""
        self._version = version

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Between two rollouts nothing is under way."""
        yield

    async def _rollout(self, step: int, version: int) -> Rollout:
        """The groups of `step`; every sample must come from `version`.

        New prompts replace dropped groups for at most `max_refills` rounds; then it goes on with fewer
        groups, or none, and `rollout/groups_missing` says how many. Where it fails or is cancelled, what
        was drawn stays in the buffer.
        """
        begin = time.perf_counter()
        tally, generating, rounds = Tally(), 0.0, 0
        versions = Versions(oldest=version, newest=version)
        wanted, buffer = self._run.data.prompts_per_step, self._buffer

        def make(draw: Draw, contexts: Sequence[EngineContext]) -> Coroutine[Any, Any, GroupOutcome]:
            return self._pipeline.make(draw, contexts, lambda: versions)

        groups = buffer.waiting()[:wanted]  # left by a rollout that failed
        try:
            while len(groups) < wanted and rounds <= self._run.data.max_refills:
                started = time.perf_counter()
                draws = self._queue.draw(wanted - len(groups))
                outcomes = await self._engines.for_each(
                    draws,
                    make,
                    self._pipeline.samplings,
                    self._pipeline.groups.rewards,
                    in_step=self._pipeline.groups.by_group,
                )
                generating += max(outcome.generated for outcome in outcomes) - started
                settled = [self._pipeline.settle(outcome, tally, at_once=wanted) for outcome in outcomes]
                groups += filter(None, settled)
                rounds += 1
        except BaseException:
            buffer.give_back()
            raise
        buffer.take(group.group_id for group in groups)
        total = time.perf_counter() - begin
        metrics = tally.metrics() | {
            "rollout/groups": len(groups),
            "rollout/groups_missing": wanted - len(groups),
            "rollout/refills": max(rounds - 1, 0),
            **self._queue.metrics(),
            "time/rollout_s": total,
            "time/generate_s": generating,
            "time/reward_s": total - generating,
        }
        groups = sorted(groups, key=lambda group: group.group_id)
        return Rollout(step=step, version=version, groups=tuple(groups), metrics=metrics)
