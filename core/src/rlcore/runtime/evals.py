"""The sets that a run is evaluated on: found before it starts, given their rewards when it does, evaluated.

That is between its steps, or beside them on engines of their own (`Evaluations`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from rlcore.api.errors import ConfigError, DataError, faults_of
from rlcore.api.generation import GroupScorer
from rlcore.api.part import Part, RewardPart
from rlcore.api.sources import Prompts
from rlcore.api.types import Prompt
from rlcore.compose.evals import EvalConfig, EvalSet
from rlcore.compose.resolved import Inference, Resolved
from rlcore.rollout.evaluate import EvalResult, Evaluation, Evaluator, eval_metrics, sampling_of
from rlcore.rollout.rewards import RewardPool
from rlcore.runtime.data_checks import check_source
from rlcore.runtime.rollout_workers import RolloutWorkers
from rlcore.tracking.trace import RUN, Trace
from rlcore.tracking.trackers import Trackers
from rlcore_machine.tasks import end_tasks

EVAL_STEP = "eval/step"


@dataclass(frozen=True, kw_only=True)
class PreparedEval:
    """An evaluation and its prompts."""

    settings: EvalSet
    prompts: Sequence[Prompt]

    @property
    def name(self) -> str:
        """Its name in metrics."""
        return self.settings.name


def held_out(resolved: Resolved, prompts: Prompts) -> tuple[PreparedEval, ...]:
    """The held-out sets of the source that is trained on: greedy, by exact match."""
    config = EvalConfig(score_by="exact_match")
    return tuple(
        PreparedEval(
            settings=EvalSet(name=name, config=config, source=resolved.source),
            prompts=rows[: resolved.run.evaluation.eval_prompts],
        )
        for name, rows in prompts.held_out.items()
    )


def asked_for(chosen: Inference, taken: Sequence[PreparedEval] = ()) -> tuple[PreparedEval, ...]:
    """The sets of `--eval`. Raises `UserError`; also where one has the name of a set of `taken`."""
    names = {eval_set.name for eval_set in taken}
    for eval_set in chosen.evals:
        if eval_set.name in names:
            raise ConfigError(
                f"--eval: found the name {eval_set.name!r}, which is that of the held-out set of what is "
                "trained on; give it another."
            )
    return tuple(_with_prompts(eval_set, chosen) for eval_set in chosen.evals)


def asked(source: Part, ask: Callable[[Any], Prompts]) -> Prompts:
    """The prompts that `ask` gets from the built source. Its faults are told as those of a plugin."""
    whose = f"The source {source.name!r}"
    with faults_of(whose):
        prompts = ask(source.build())
        check_source(whose, prompts)  # here, for a lazy set may raise when it is read
    return prompts


def _with_prompts(eval_set: EvalSet, chosen: Inference) -> PreparedEval:
    """The evaluation with the held-out prompts of its source; all prompts, if none is held out."""
    prompts = asked(eval_set.source, lambda source: source.prompts())
    count = eval_set.config.prompts or chosen.run.evaluation.eval_prompts
    rows = next(iter(prompts.held_out.values()), prompts.train)[:count]
    needs_label = eval_set.config.score_by == "exact_match" or not eval_set.judged_by(chosen.rewards)
    if needs_label and not any(prompt.label is not None for prompt in rows):
        raise DataError(
            f"--eval {eval_set.name}: no prompt has a label, so no answer can match one; expected labels, or "
            f"a reward with --eval.{eval_set.name}.reward."
        )
    return PreparedEval(settings=eval_set, prompts=rows)


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
    known = list(pools)
    made = []
    for evaluation in sets:
        config = evaluation.settings.config
        # what a sample is worth, not what it is worth among siblings
        parts = tuple(replace(part, ranked=False) for part in evaluation.settings.judged_by(chosen.rewards))
        scorer = None
        if parts:
            scorer = next((pool for of, pool in known if of == parts), None) or await start_rewards(
                parts, chosen, stack, tokenizer
            )
            # Sets with the same rewards share their processes.
            known.append((parts, scorer))
        made.append(
            Evaluation(
                name=evaluation.name,
                prompts=evaluation.prompts,
                generator=generators.of(evaluation.settings.generator or chosen.generator),
                scorer=scorer,
                sampling=sampling_of(config, chosen.run),
                samples=config.samples,
                exact=config.score_by == "exact_match",
                solved_at=config.solved_at,
            )
        )
    return made


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


@dataclass(frozen=True, kw_only=True)
class _UnderWay:
    """An evaluation of the weights after `step`."""

    step: int
    version: int
    begin: float
    results: asyncio.Task[dict[str, EvalResult]]


class Evaluations:
    """`beside`: evaluations have engines of their own. `scores`: those of the last evaluation."""

    def __init__(self, evaluator: Evaluator, trackers: Trackers, trace: Trace, *, beside: bool) -> None:
        self._evaluator, self._trackers, self._trace = evaluator, trackers, trace
        self.beside = beside
        self.scores: Mapping[str, float] = {}
        self._under_way: _UnderWay | None = None

    async def now(self, step: int, version: int) -> dict[str, float]:
        """The metrics of the weights after `step`, which the engines hold as `version`."""
        begin = time.perf_counter()
        return self._metrics(step, await self._results(step, version), begin)

    def begin(self, step: int, version: int) -> None:
        """Begin the same beside training. The last one must have ended; `late` gives the metrics."""
        assert self._under_way is None, "one at a time"
        results = asyncio.create_task(self._results(step, version))
        begin = time.perf_counter()
        self._under_way = _UnderWay(step=step, version=version, begin=begin, results=results)

    async def late(self, *, wait: bool) -> dict[str, float]:
        """The metrics of the evaluation that was begun, with its step; empty while it goes on.

        `wait`: wait for its end.
        """
        running = self._under_way
        if running is None or not (wait or running.results.done()):
            return {}
        scores = self._metrics(running.step, await running.results, running.begin)
        self._under_way = None
        return {"weight_version": running.version, EVAL_STEP: running.step, **scores}

    async def stop(self) -> None:
        """Cancel the evaluation in progress, and ignore its outcome."""
        if self._under_way is not None:
            await end_tasks([self._under_way.results])

    async def _results(self, step: int, version: int) -> dict[str, EvalResult]:
        with self._trace.span(RUN, "evaluate", step=step):
            return await self._evaluator.evaluate(version)

    def _metrics(self, step: int, results: Mapping[str, EvalResult], begin: float) -> dict[str, float]:
        """The metrics of `results`, whose samples go to the trackers."""
        self.scores = {name: result.score for name, result in results.items()}
        self._trackers.evaluation(step, {name: result.samples for name, result in results.items()})
        return eval_metrics(results) | {"time/eval_s": time.perf_counter() - begin}
