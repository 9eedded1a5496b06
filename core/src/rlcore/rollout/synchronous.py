"""Synchronous rollouts: round after round of prompts, in an order that repeats."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rlcore.api.producer import Rollout
from rlcore.api.run_config import RunConfig
from rlcore.api.types import Group, Sampling
from rlcore.engines.client import together
from rlcore.rollout.buffer import Draw
from rlcore.rollout.context import Engines
from rlcore.rollout.group import GroupOutcome, Versions
from rlcore.rollout.metrics import Tally
from rlcore.rollout.pipeline import GroupPipeline, RolloutPipeline
from rlcore.rollout.prompt_queue import PromptQueue


class SynchronousRollouts:
    """Makes the rollout of a step with the weights that the engines hold, and nothing beyond it.

    All requests of a round begin together, and the next round begins when all have ended. So the engines
    compute the same batches in every run, and every number repeats. `AsynchronousRollouts` starts a group as
    soon as there is room for it, so its batches differ, also with a bound of 0.
    """

    def __init__(
        self,
        run: RunConfig,
        queue: PromptQueue,
        engines: Engines,
        pipeline: RolloutPipeline,
        sampling: Sampling,
        version: int,
    ) -> None:
        self._run = run
        self._queue = queue
        self._engines = engines
        self._pipeline = pipeline
        self._sampling = sampling
        self._version = version

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
        wanted, buffer = self._run.data.prompts_per_step, self._queue.buffer
        groups = buffer.waiting()[:wanted]  # left by a rollout that failed
        try:
            while len(groups) < wanted and rounds <= self._run.data.max_refills:
                started = time.perf_counter()
                draws = self._queue.draw(wanted - len(groups))
                outcomes = await make_all(
                    self._pipeline,
                    self._engines,
                    draws,
                    self._sampling,
                    versions,
                    count=self._run.data.group_size,
                    baseline=self._pipeline.baseline,
                )
                generating += max(outcome.generated for outcome in outcomes) - started
                settled = [self._pipeline.settle(one, tally, at_once=wanted) for one in outcomes]
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
        return Rollout(step=step, version=version, groups=_by_id(groups), metrics=metrics)


async def make_all(
    maker: GroupPipeline,
    engines: Engines,
    draws: Sequence[Draw],
    sampling: Sampling,
    versions: Versions,
    *,
    count: int,
    prefix: str = "",
    in_step: bool = True,
    baseline: bool = False,
) -> list[GroupOutcome]:
    """The outcomes of all draws, in their order.

    `in_step`: runs repeat exactly, so the engines are to batch alike: where one request makes one group,
    all requests begin together, in as many turns as it takes to have all of a turn in flight. `baseline`:
    each group has a greedy response beside it.
    """
    width = engines.width(2 if baseline else 1)
    at_once = maker.by_group and in_step and width > 0
    turn = width if at_once else len(draws)
    outcomes: list[GroupOutcome] = []
    for start in range(0, len(draws), turn):
        part = draws[start : start + turn]
        contexts = engines.contexts(len(part), sampling, maker.scorer, together=at_once, baseline=baseline)
        if baseline:
            made = [
                maker.make_with_baseline(draw, ctx, greedy, lambda: versions, count=count)
                for draw, ctx, greedy in zip(part, contexts[::2], contexts[1::2], strict=True)
            ]
        else:
            made = [
                maker.make(draw, ctx, lambda: versions, count=count, prefix=prefix)
                for draw, ctx in zip(part, contexts, strict=True)
            ]
        outcomes += await together(made)
    return outcomes


def _by_id(groups: Sequence[Group]) -> tuple[Group, ...]:
    return tuple(sorted(groups, key=lambda group: group.group_id))
