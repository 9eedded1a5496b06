"""`Evaluations`: the evaluations of a run, between its steps, or beside them on engines of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlcore.rollout.evaluate import eval_metrics
from rlcore.tracking.trace import RUN, Trace

if TYPE_CHECKING:
    from rlcore.rollout.evaluate import EvalResult, Evaluator
    from rlcore.tracking.trackers import Trackers

EVAL_STEP = "eval/step"


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
            self._under_way.results.cancel()
            await asyncio.gather(self._under_way.results, return_exceptions=True)

    async def _results(self, step: int, version: int) -> dict[str, EvalResult]:
        with self._trace.span(RUN, "evaluate", step=step):
            return await self._evaluator.evaluate(version)

    def _metrics(self, step: int, results: Mapping[str, EvalResult], begin: float) -> dict[str, float]:
        """The metrics of `results`, whose samples go to the trackers."""
        self.scores = {name: result.score for name, result in results.items()}
        self._trackers.evaluation(step, {name: result.samples for name, result in results.items()})
        return eval_metrics(results) | {"time/eval_s": time.perf_counter() - begin}
