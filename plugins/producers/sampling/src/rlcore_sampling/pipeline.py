"""From a draw to a group to train on: made, judged by the filters, and recorded in the buffer."""

from collections.abc import Callable, Sequence

from rlcore import (
    BASELINE,
    Draw,
    EngineContext,
    Filter,
    Generator,
    Group,
    GroupOrder,
    GroupOutcome,
    GroupPipeline,
    GroupScorer,
    PluginError,
    PromptEncoder,
    RunConfig,
    RunError,
    Verdict,
    Versions,
    faults_of,
    part_name,
    returned,
    sampling_of,
)
from rlcore_machine import together
from rlcore_sampling.baseline import greedy, with_baseline
from rlcore_sampling.prompt_queue import PromptQueue
from rlcore_sampling.tally import Tally


class RolloutPipeline:
    """The whole way of a group in training: filters judge it, and the buffer records what became of it."""

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
        vocabulary: int | None = None,
    ) -> None:
        """`baseline`: each group needs the reward of a greedy response. `vocabulary`: of the model."""
        self.groups = GroupPipeline(
            run=run, encoder=encoder, generator=generator, rewards=rewards, vocabulary=vocabulary
        )
        sampling = sampling_of(run)
        self.samplings = [sampling, greedy(sampling)] if baseline else [sampling]
        """Those of the contexts that `make` needs."""
        self._run = run
        self._filters = filters
        self._queue = queue
        self._buffer = queue.buffer
        self._failing: set[int] = set()
        self._has_scored = False

    async def make(
        self, draw: Draw, contexts: Sequence[EngineContext], versions: Callable[[], Versions]
    ) -> GroupOutcome:
        """The group of a draw, with the reward of the greedy response in each sample if it needs that."""
        ctx, count = contexts[0], self._run.data.group_size
        if len(contexts) == 1:
            return await self.groups.make(draw, ctx, versions, count=count)
        outcome, baseline = await together(
            [
                self.groups.make(draw, ctx, versions, count=count),
                self.groups.make(draw, contexts[1], versions, count=1, prefix=BASELINE),
            ]
        )
        return with_baseline(outcome, baseline)

    def settle(self, outcome: GroupOutcome, tally: Tally, *, at_once: int) -> Group | None:
        """Record the outcome of a draw in flight. Returns its group if that is to be trained on.

        A draw that crashed is generated again, up to `max_attempts` times. When `at_once` draws in a row have
        an error, the run cannot go on, and the error is raised. Rewards that have worked before may fail more
        often: for as many draws as a rollout takes with all its refills.
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
        if outcome.is_crashed:
            if not self._buffer.crashed(group_id, self._run.data.max_attempts):
                tally.drop("crashed")
            return None
        if outcome.reason is None:
            self._queue.scored(outcome.group)
        group = self._filtered(outcome.group, tally) if outcome.reason is None else None
        if group is None:
            self._buffer.drop(group_id)
        else:
            self._buffer.finish([group])
        return group

    def in_order(self, groups: list[Group], version: int) -> list[Group]:
        """Finished groups as the filters order them. The last filter with an order decides."""
        for judge in self._filters:
            if isinstance(judge, GroupOrder):
                name = f"The filter {part_name(judge)}"
                with faults_of(name):
                    ordered = list(judge.order(groups, version))
                # By identity: an order may neither copy a group nor repeat one.
                if sorted(map(id, ordered)) != sorted(map(id, groups)):
                    raise PluginError(f"{name}: its order has other groups than those that it was given.")
                groups = ordered
        return groups

    def _filtered(self, group: Group, tally: Tally) -> Group | None:
        for judge in self._filters:
            verdict = _judged(judge, group)
            if verdict.group is None:
                tally.drop(verdict.reason or "filtered")
                return None
            group = verdict.group
        return group


def _judged(judge: Filter, group: Group) -> Verdict:
    """The verdict of a filter. Its faults become `PluginError`."""
    whose = f"The filter {part_name(judge)}"
    with faults_of(whose):
        verdict = judge.judge(group)
    returned(whose, verdict, Verdict, "a Verdict")
    if verdict.group is not None:
        returned(f"{whose}, in its verdict,", verdict.group, Group, "a Group or None")
    return verdict
