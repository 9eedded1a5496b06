"""Asynchronous rollouts: groups are made all the time, and a batch leaves when it can."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rlcore import Group, ProducerContext, Rollout, RunError, Sampling, Versions
from rlcore_machine import end_tasks
from rlcore_sampling.buffer import BufferedDraw
from rlcore_sampling.sampling_producer import SamplingProducer
from rlcore_sampling.staleness import chosen_batch, newest, oldest, without_stale
from rlcore_sampling.tally import Tally, staleness_metrics
from rlcore_toolkit import ContinuingContext, RequestGate


class AsynchronousRollouts(SamplingProducer):
    """Keeps as many groups in progress as can be trained on before they are too old.

    A group is in progress from its draw until the weights that it was trained into are published. At most
    (`max_staleness` + 1) · `prompts_per_step` are in progress. So when a batch leaves, all remaining groups
    can still be trained on in time, whichever finish first (`in_time`).
    """

    def __init__(self, context: ProducerContext) -> None:
        super().__init__(context)
        self._gate = RequestGate(context.clients)
        self._newest = context.version
        # The version that each task began with. A group may have two: one has crashed and not been told of.
        self._begun: dict[asyncio.Task[None], int] = {}
        self._training = 0
        self._unplanned = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._discarded = 0
        self._tally = Tally()

    # --- the consumer's side ---------------------------------------------------------------------------

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`; asking means that the last one was trained on."""
        batch = self._run.data.prompts_per_step
        self._unplanned = (steps - done) * batch
        self._is_stopping = False
        try:
            for step in range(done + 1, steps + 1):
                self._training = 0
                self._gate.open()
                self._top_up()
                rollout = await self._rollout(step)
                self._unplanned -= batch
                yield rollout
        finally:
            await self._stop()

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        """While it is entered, the engines load `version`.

        `on_publish` says what happens to requests in progress.
        """
        # Before the engines take it up: from now on an answer may hold tokens of it.
        self._newest = version
        if self._run.asynchrony.on_publish in ("wait", "abort"):
            await self._gate.close(interrupt=self._run.asynchrony.on_publish == "abort")
        yield
        self.published(version)

    def published(self, version: int) -> None:
        """The engines hold `version`, so the groups of the last batch are no longer in progress."""
        self._version = self._newest = version
        self._training = 0
        self._gate.open()
        self._top_up()

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """While it is entered, no request is in progress, and the buffer holds everything sampled so far."""
        await self._gate.close(interrupt=True)
        yield
        self._gate.open()

    # --- production ------------------------------------------------------------------------------------

    def _top_up(self) -> None:
        """Start as many groups as there is room for."""
        present = len(self._begun) + len(self._buffer.waiting())
        room = self._bound - self._beyond_refills - self._training
        for draw in self._queue.draw(max(0, min(room, self._unplanned) - present)):
            self._start(draw)

    @property
    def _bound(self) -> int:
        """The most groups in progress, including those that are being trained on."""
        # With partial rollouts nothing is sampled while a batch is trained on: none can be ahead.
        ahead = 0 if self._run.asynchrony.partial_rollouts else self._run.asynchrony.max_staleness
        return math.ceil(self._run.data.prompts_per_step * (ahead + self._run.asynchrony.over_sample))

    @property
    def _beyond_refills(self) -> int:
        """Dropped groups that no new prompt replaces. The batch is smaller by that number."""
        return max(0, self._tally.dropped - self._run.data.max_refills * self._run.data.prompts_per_step)

    def _start(self, draw: BufferedDraw) -> None:
        notes = self._buffer.notes(draw.group_id)
        begun = min((version for note in notes.values() for version in note.versions), default=self._version)
        if begun < self._oldest and not self._run.asynchrony.mask_stale_tokens:
            # Too old to be continued. Where stale tokens are masked one by one, the rest is of use.
            self._discarded += sum(note.tokens for note in notes.values())
            notes.clear()
            begun = self._version
        task = asyncio.create_task(self._make(draw, begun))
        self._begun[task] = begun
        task.add_done_callback(self._ended)

    async def _make(self, draw: BufferedDraw, begun: int) -> None:
        def context(sampling: Sampling) -> ContinuingContext:
            return ContinuingContext(
                self._engines.client_of(draw.group_id),
                self._engines.tokenizer,
                sampling,
                self._pipeline.groups.rewards,
                requests=self._gate,
                notes=self._buffer.notes(draw.group_id),
                context_length=self._engines.context_length,
            )

        def versions() -> Versions:
            return Versions(oldest=begun, newest=self._newest)

        outcome = await self._pipeline.make(draw, [*map(context, self._pipeline.samplings)], versions)
        self._pipeline.settle(outcome, self._tally, at_once=min(self._bound, self._unplanned))

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._begun[task]
        failure = RunError("A group was cancelled in the making.") if task.cancelled() else task.exception()
        # `_stop` cancels tasks, which is no failure of theirs.
        if self._is_stopping:
            return
        self._failure = self._failure or failure
        if self._failure is None:
            try:
                self._top_up()
            except Exception as error:  # nobody sees what a callback raises
                self._failure = error
        self._changed.set()

    async def _stop(self) -> None:
        self._is_stopping = True
        await end_tasks(self._begun)
        self._buffer.give_back()

    # --- one rollout -----------------------------------------------------------------------------------

    async def _rollout(self, step: int) -> Rollout:
        begin = time.perf_counter()
        while (groups := self._batch()) is None:
            # Nothing is awaited between the look and the wait, so that no change is missed.
            self._changed.clear()
            await self._changed.wait()
        if self._run.asynchrony.partial_rollouts:
            await self._gate.close(interrupt=True)
        self._buffer.take(group.group_id for group in groups)
        self._training = self._run.data.prompts_per_step
        # Before stale tokens are masked: the metrics are of all that was sampled.
        metrics = self._metrics(groups) | {"time/rollout_s": time.perf_counter() - begin}
        if self._run.asynchrony.mask_stale_tokens:
            groups = [without_stale(group, self._oldest) for group in groups]
        groups = sorted(groups, key=lambda group: group.group_id)
        return Rollout(step=step, version=self._version, groups=tuple(groups), metrics=metrics)

    @property
    def _oldest(self) -> int:
        """The oldest weights whose tokens may be trained on now."""
        return self._version - self._run.asynchrony.max_staleness

    def _batch(self) -> list[Group] | None:
        """The next batch: the oldest finished groups, or those that a filter prefers, if the others can wait.

        Or None.
        """
        if self._failure is not None:
            raise self._failure
        self._expire()
        size = self._run.data.prompts_per_step
        waiting = sorted(self._buffer.waiting(), key=lambda group: (oldest(group), group.group_id))
        if len(waiting) < size - self._beyond_refills:
            return None
        waiting = self._pipeline.in_order(waiting, self._version)
        if self._run.asynchrony.mask_stale_tokens:
            return waiting[:size]
        staleness, running = self._run.asynchrony.max_staleness, self._begun.values()
        return chosen_batch(waiting, running, self._version, staleness=staleness, batch=size)

    def _expire(self) -> None:
        """Generate groups again whose tokens are all too old to be trained on."""
        judged = newest if self._run.asynchrony.mask_stale_tokens else oldest
        expired = [group for group in self._buffer.waiting() if judged(group) < self._oldest]
        if expired:
            self._discarded += sum(len(s.response_ids) for group in expired for s in group.samples)
            self._buffer.expire(expired)
            self._top_up()

    def _metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        tally = self._tally
        self._tally = tally.split(groups, self._buffer.waiting())
        discarded, self._discarded = self._discarded, 0
        size = self._run.data.prompts_per_step
        return {
            **tally.metrics(),
            **staleness_metrics(groups, self._version),
            "rollout/groups": len(groups),
            "rollout/groups_missing": size - len(groups),
            "rollout/refills": math.ceil(min(tally.dropped, self._run.data.max_refills * size) / size),
            "rollout/groups_in_flight": len(self._begun),
            "rollout/groups_waiting": len(self._buffer.waiting()),
            "rollout/tokens_discarded": discarded,
            **self._queue.metrics(),
        }
