"""Evaluations of a run: between its steps, or beside them on engines of their own (`Evaluations`)."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from rlcore.api.generation import GroupScorer
from rlcore.api.part import RewardPart
from rlcore.compose.resolved import Inference
from rlcore.preparation.eval_sets import PreparedEval
from rlcore.rollout.context import sampling_of
from rlcore.rollout.evaluate import Evaluation, Evaluator, eval_metrics
from rlcore.rollout.rewards import RewardPool
from rlcore.tracking.trace import RUN, Trace
from rlcore.tracking.trackers import Trackers
from rlcore.workers.rollout_workers import RolloutWorkers
from rlcore_machine.tasks import end_tasks

EVAL_STEP = "eval/step"


async def evaluations(
    chosen: Inference,
    sets: Sequence[PreparedEval],
    pools: Sequence[tuple[tuple[RewardPart, ...], GroupScorer]],
    generators: RolloutWorkers,
    stack: AsyncExitStack,
    tokenizer: str,
) -> list[Evaluation]:
    """`sets` with their generators and rewards. `pools`: the rewards that are already there.

    The processes of further rewards are started, and end with `stack`. `tokenizer`: the directory of the
    run's, for rewards that ask for it.
    """
    scorers = list(pools)
    result = []
    for evaluation in sets:
        config = evaluation.settings.config
        # what a sample is worth, not what it is worth among siblings
        parts = tuple(replace(part, ranked=False) for part in evaluation.settings.judged_by(chosen.rewards))
        scorer = None
        if parts:
            scorer = next((pool for of, pool in scorers if of == parts), None) or await start_rewards(
                parts, chosen, stack, tokenizer
            )
            # Sets with the same rewards share their processes.
            scorers.append((parts, scorer))
        result.append(
            Evaluation(
                name=evaluation.name,
                prompts=evaluation.prompts,
                generator=generators.of(evaluation.settings.generator or chosen.generator),
                scorer=scorer,
                sampling=sampling_of(chosen.run, config),
                samples=config.samples,
                exact=config.score_by == "exact_match",
                solved_at=config.solved_at,
            )
        )
    return result


async def start_rewards(
    parts: tuple[RewardPart, ...], chosen: Inference, stack: AsyncExitStack, tokenizer: str
) -> RewardPool:
    """The processes that score by `parts`; they end with `stack`."""
    run = chosen.run
    pool = RewardPool(
        parts,
        workers=run.rewards.reward_workers,
        timeout=run.rewards.reward_timeout,
        memory_gib=run.rewards.reward_memory_gib,
        plugin_files=chosen.plugin_files,
        tokenizer=tokenizer,
        settings={**run.values(), "model": tokenizer},
    )
    return await stack.enter_async_context(pool)


class Evaluations:
    """`beside`: evaluations have engines of their own. `scores`: those of the last evaluation."""

    def __init__(self, evaluator: Evaluator, trackers: Trackers, trace: Trace, *, beside: bool) -> None:
        self._evaluator, self._trackers, self._trace = evaluator, trackers, trace
        self.beside = beside
        self.scores: Mapping[str, float] = {}
        self._under_way: asyncio.Task[dict[str, float]] | None = None

    async def now(self, step: int, version: int) -> dict[str, float]:
        """The metrics of the weights after `step`, which the engines hold as `version`.

        The samples go to the trackers.
        """
        begin = time.perf_counter()
        with self._trace.span(RUN, "evaluate", step=step):
            results = await self._evaluator.evaluate(version)
        self.scores = {name: result.score for name, result in results.items()}
        self._trackers.evaluation(step, {name: result.samples for name, result in results.items()})
        return eval_metrics(results) | {"time/eval_s": time.perf_counter() - begin}

    def begin(self, step: int, version: int) -> None:
        """Begin the same beside training. The last one must have ended; `late` gives the metrics."""
        assert self._under_way is None, "one at a time"
        self._under_way = asyncio.create_task(self._row(step, version))

    async def late(self, *, wait: bool) -> dict[str, float]:
        """The metrics of the evaluation that was begun, with its step; empty while it goes on.

        `wait`: wait for its end.
        """
        if self._under_way is None or not (wait or self._under_way.done()):
            return {}
        row = await self._under_way
        self._under_way = None
        return row

    async def stop(self) -> None:
        """Cancel the evaluation in progress, and ignore its outcome."""
        if self._under_way is not None:
            await end_tasks([self._under_way])

    async def _row(self, step: int, version: int) -> dict[str, float]:
        return {"weight_version": version, EVAL_STEP: step, **await self.now(step, version)}
