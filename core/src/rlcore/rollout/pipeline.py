"""`GroupPipeline` and `RolloutPipeline`: one draw made into a group; and judged, and booked in the buffer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rlcore.api.errors import DataError, PluginError, RunError, faults_of
from rlcore.api.generation import Generator, GroupScorer
from rlcore.api.run_config import RunConfig
from rlcore.api.scoring import Filter, Verdict
from rlcore.api.tokens import PromptEncoder
from rlcore.api.types import BASELINE, Group, Sample
from rlcore.engines.client import together
from rlcore.rollout.baseline import with_baseline
from rlcore.rollout.buffer import Draw
from rlcore.rollout.columns import check_metadata
from rlcore.rollout.context import EngineContext
from rlcore.rollout.group import CRASHED, UNFIT, GroupMaker, GroupOutcome, Versions, new_samples
from rlcore.rollout.metrics import Tally
from rlcore.rollout.prompt_queue import PromptQueue

_log = logging.getLogger(__name__)


class GroupPipeline:
    """Makes scored groups: what synchronous and asynchronous runs, and evaluations, have in common."""

    def __init__(
        self, *, run: RunConfig, encoder: PromptEncoder, generator: Generator, rewards: GroupScorer
    ) -> None:
        self._run = run
        self._encoder = encoder
        self._maker = GroupMaker(generator, rewards, run.seed)
        self.scorer = rewards

    @property
    def by_group(self) -> bool:
        """Whether one call of the generator makes a whole group."""
        return self._maker.by_group

    async def make(
        self,
        draw: Draw,
        ctx: EngineContext,
        versions: Callable[[], Versions],
        *,
        count: int,
        prefix: str = "",
    ) -> GroupOutcome:
        """`count` samples of a draw, generated and scored.

        A generator that fails is an outcome, and so is a prompt that no run takes, or that lacks what
        becomes a column (such are found before the run starts only among the first of a set).
        """

        def fresh_of(ids: tuple[int, ...]) -> list[Sample]:
            return new_samples(draw, ids, count=count, run_seed=self._run.seed, prefix=prefix)

        try:
            check_metadata([draw.prompt], self._run.data.metadata_columns)
            fresh = fresh_of(self._encoder.encode(draw.prompt))
        except DataError as error:
            ctx.close()
            _log.warning("%s It is left out.", error)
            return GroupOutcome.unanswered(draw, fresh_of(()), UNFIT)
        try:
            made = await self._maker.generate(ctx, draw, fresh, versions)
        except PluginError as error:
            _log.warning("Prompt %r, group %d: %s", draw.prompt.prompt_id, draw.group_id, error)
            made = GroupOutcome.unanswered(draw, fresh, CRASHED, error)
        finally:
            ctx.close()
        return await self._maker.score(made)

    async def make_with_baseline(
        self,
        draw: Draw,
        ctx: EngineContext,
        greedy: EngineContext,
        versions: Callable[[], Versions],
        *,
        count: int,
    ) -> GroupOutcome:
        """As `make`; the samples know the reward of the response that `greedy` gives to their prompt."""
        made, baseline = await together(
            [
                self.make(draw, ctx, versions, count=count),
                self.make(draw, greedy, versions, count=1, prefix=BASELINE),
            ]
        )
        return with_baseline(made, baseline)


class RolloutPipeline(GroupPipeline):
    """Also judges the groups of a run that trains, and books them in the buffer."""

    def __init__(
        self,
        *,
        run: RunConfig,
        encoder: PromptEncoder,
        generator: Generator,
        rewards: GroupScorer,
        filters: Sequence[Filter],
        queue: PromptQueue,
        baseline: bool = False,
    ) -> None:
        """`baseline`: a greedy response is made beside each group to train on, for its reward."""
        super().__init__(run=run, encoder=encoder, generator=generator, rewards=rewards)
        self._filters = filters
        self.baseline = baseline
        self._queue = queue
        self._buffer = queue.buffer
        self._failing: set[int] = set()
        self._has_scored = False

    def settle(self, outcome: GroupOutcome, tally: Tally, *, at_once: int) -> Group | None:
        """Book what became of a draw in flight; the group that waits to be trained on, if it does.

        A crashed one is generated again, until `max_attempts` have crashed. Raises the error of a draw where
        as many draws in a row had one as there are `at_once`: the run cannot go on. Rewards that have given
        a score may fail for as many draws as a rollout takes with all its refills.
        """
        run, group_id = self._run, outcome.group.group_id
        self._failing = {*self._failing, group_id} if outcome.error else set()
        if outcome.error:
            is_passing = self._has_scored and outcome.is_unscored
            draws = run.data.prompts_per_step * (1 + run.data.max_refills) if is_passing else 0
            if len(self._failing) >= max(draws, at_once, run.data.max_attempts):
                raise RunError(str(outcome.error)) if is_passing else outcome.error
        self._has_scored |= outcome.reason is None
        tally.add(outcome)
        if outcome.reason == CRASHED:
            if not self._buffer.crashed(group_id, self._run.data.max_attempts):
                tally.drop(CRASHED)
            return None
        if outcome.reason is None:
            self._queue.scored(outcome.group)
        group = self._filtered(outcome.group, tally) if outcome.reason is None else None
        if group is None:
            self._buffer.drop(group_id)
        else:
            self._buffer.finish([group])
        return group

    def _filtered(self, group: Group, tally: Tally) -> Group | None:
        for judge in self._filters:
            verdict = _judged(judge, group)
            if verdict.group is None:
                tally.drop(verdict.reason or "filtered")
                return None
            group = verdict.group
        return group


def _judged(judge: Filter, group: Group) -> Verdict:
    """A filter is a plugin: its faults are told as such."""
    with faults_of(f"The filter {type(judge).__name__}"):
        return judge.judge(group)
