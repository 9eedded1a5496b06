"""`Trace`: when each phase and each request of a run began and ended, in Chrome's trace event format.

`RUN/trace.json` opens in `rlcore view`, in https://ui.perfetto.dev and in chrome://tracing.
"""

import asyncio
import heapq
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from rlcore.api.generation import Completion, GenerationClient, GroupScorer, Request
from rlcore.api.types import Json, Sample

_log = logging.getLogger(__name__)

PREVIOUS, TRACE = "trace.previous.json", "trace.json"
TRACE_FILES = (PREVIOUS, TRACE)
"""The files of a trace in a run's folder, the older first: `TRACE` becomes `PREVIOUS` when it is full."""
RUN, REWARDS = "run", "rewards"
"""Tracks for the phases of the loop, and for the groups being scored. Each engine has a track of its own."""


class Trace:
    """Spans of one run, each in a lane of its track. Not thread-safe.

    The files keep the newest `limit` bytes; 0: nothing is recorded. If the file cannot be written, there is
    one warning and no trace.
    """

    def __init__(self, folder: Path = Path(), limit: int = 0, engines: int = 0) -> None:
        self._path, self._limit = folder / TRACE, limit
        names = (RUN, REWARDS, *map(engine_track, range(engines)))
        # A track is a process in the trace format.
        self._processes = {name: number for number, name in enumerate(names, 1)}
        # The lanes that are free again, lowest first, and those that were never taken.
        self._lanes: dict[str, tuple[list[int], Iterator[int]]] = {name: ([], count(1)) for name in names}
        self._events: list[str] = []
        self._open: Counter[str] = Counter()
        self._begun = 0
        # Read once: the wall clock may be set back in the middle of a run, the other one may not.
        self._begin_ns = time.time_ns() - time.perf_counter_ns()

    @contextmanager
    def span(self, track: str, name: str, **about: Json) -> Iterator[dict[str, Json]]:
        """A span from here to the end of the block.

        What the block adds to the dict becomes part of the span.
        """
        (free, fresh), begin = self._lanes[track], time.perf_counter_ns()
        lane = heapq.heappop(free) if free else next(fresh)
        self._open[name] += 1
        self._begun += 1
        try:
            yield about
        finally:
            self._open[name] -= 1
            heapq.heappush(free, lane)
            if self._limit:
                length = (time.perf_counter_ns() - begin) / 1000
                self._note("X", name, track, lane, begin, dur=length, args=about)

    async def tell_idle(self, tell: Callable[[str], None], limit_s: float) -> None:
        """`tell` gets a sentence when answers are awaited while for `limit_s` nothing was asked of an engine.

        It gets the next one after twice that time. Never returns.
        """
        wait_s, seen = limit_s, -1
        while True:
            await asyncio.sleep(wait_s)
            awaited = self._open["rollout"] + self._open["evaluate"]
            if awaited and self._begun == seen and not self._open["generate"]:
                groups = self._open["reward"]
                what = (
                    f"the scores of {groups} groups (--reward-timeout)"
                    if groups
                    else "generators (--generator-timeout)"
                )
                tell(f"For {wait_s:g} s nothing was asked of an engine: this run waits for {what}.")
                wait_s *= 2
            else:
                wait_s, seen = limit_s, self._begun

    def flush(self) -> None:
        """Write the spans recorded so far."""
        events, self._events = self._events, []
        if not events:
            return
        try:
            # Two files of half the limit: the older one goes as a whole.
            if self._path.exists() and self._path.stat().st_size > self._limit / 2:
                self._path.replace(self._path.with_name(PREVIOUS))
            is_new = not self._path.exists()
            with self._path.open("a", encoding="utf-8") as file:
                # the closing bracket is optional in the format, so that a program may end anywhere
                file.write("".join(["[\n", *self._names()] if is_new else []) + "".join(events))
        except OSError as error:
            self._limit = 0
            _log.warning("%s could not be written: %s. The run goes on without it.", self._path, error)

    def end(self, reason: str) -> None:
        """Record the end of the run with its reason, and write everything."""
        if self._limit:
            self._note("i", "end", RUN, 1, time.perf_counter_ns(), s="g", args={"reason": reason})
            self.flush()

    def _note(self, kind: str, name: str, track: str, lane: int, begin: int, **more: Json) -> None:
        at = (self._begin_ns + begin) / 1000  # microseconds since 1970
        place = {"cat": track, "pid": self._processes[track], "tid": lane}
        event = {"ph": kind, "name": name, "ts": at, **place, **more}
        self._events.append(json.dumps(event, ensure_ascii=False) + ",\n")

    def _names(self) -> Iterator[str]:
        for name, number in self._processes.items():
            event = {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
            yield json.dumps(event) + ",\n"


def engine_track(number: int) -> str:
    """The track of engine `number`."""
    return f"engine {number}"


class TracedEngine:
    """An engine whose requests are recorded as spans. They include the wait for a free connection."""

    def __init__(self, engine: GenerationClient, trace: Trace, number: int) -> None:
        self._engine, self._trace, self._track = engine, trace, engine_track(number)

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The engine's completions, and a span from the request to them."""
        size = {"prompt": len(request.input_ids), "samples": request.n}
        with self._trace.span(self._track, "generate", rid=request.rid, **size) as about:
            completions = await self._engine.generate(request)
            about["tokens"] = sum(len(completion.token_ids) for completion in completions)
            about["ends"] = sorted({completion.finish_reason for completion in completions})
        return completions

    async def abort(self) -> None:
        """Ends the engine's requests."""
        await self._engine.abort()


class TracedRewards:
    """Rewards whose groups are recorded as spans. They include the wait for an idle worker."""

    def __init__(self, rewards: GroupScorer, trace: Trace) -> None:
        self._rewards, self._trace = rewards, trace

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Scores by the rewards, and notes the time."""
        group = samples[0].group_id if samples else None
        with self._trace.span(REWARDS, "reward", group=group, samples=len(samples)):
            return await self._rewards.score(samples)
