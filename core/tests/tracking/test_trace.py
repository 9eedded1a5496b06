"""The trace: what a viewer finds in it, while a run goes on, after it, and when it grows long."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from rlcore import Completion, Request, Sampling, Span
from rlcore.tracking.trace import PREVIOUS, REWARDS, RUN, TRACE, Trace, TracedEngine


def events(path: Path) -> list[dict[str, Any]]:
    """As viewers read it: the closing bracket is missing while the run goes on."""
    found: list[dict[str, Any]] = json.loads(path.read_text().rstrip(",\n") + "]")
    return found


def spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in events(path) if event["ph"] == "X"]


class Engine:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def generate(self, request: Request) -> list[Completion]:
        await self.may_answer.wait()
        answer = Completion(
            token_ids=(1, 2, 3),
            log_probs=(0.0, 0.0, 0.0),
            text="",
            finish_reason="stop",
            spans=(Span(start=0, version=1),),
            prompt_tokens=1,
        )
        return [answer]

    async def abort(self) -> None: ...


async def test_requests_under_way_at_once_have_lanes_of_their_own(tmp_path: Path) -> None:
    trace = Trace(tmp_path, 2**20, engines=2)
    engine = Engine()
    traced = TracedEngine(engine, trace, 1)

    async def ask(rid: str) -> None:
        await traced.generate(Request(input_ids=(5, 6), sampling=Sampling(max_tokens=3), rid=rid))

    with trace.span(RUN, "rollout", step=1):
        asking = [asyncio.create_task(ask(f"{number}.0-0.0")) for number in range(2)]
        await asyncio.sleep(0)
        engine.may_answer.set()
        await asyncio.gather(*asking)
        await ask("2.0-0.0")
    trace.end("completed")
    names = {e["pid"]: e["args"]["name"] for e in events(tmp_path / TRACE) if e["ph"] == "M"}
    assert list(names.values()) == ["run", "rewards", "engine 0", "engine 1"]
    first, second, third, whole = spans(tmp_path / TRACE)
    assert names[first["pid"]] == first["cat"] == "engine 1"
    assert first["args"] == {"rid": "0.0-0.0", "prompt": 2, "samples": 1, "tokens": 3, "ends": ["stop"]}
    assert (first["tid"], second["tid"]) == (1, 2)
    assert third["tid"] == 1, "the lane is free again"
    assert whole["args"] == {"step": 1}
    assert whole["ts"] <= first["ts"]
    assert third["ts"] + third["dur"] <= whole["ts"] + whole["dur"]
    assert events(tmp_path / TRACE)[-1]["args"] == {"reason": "completed"}


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for step in (1, 2):
        trace = Trace(tmp_path, 2**20)
        with trace.span(RUN, "train", step=step):
            pass
        trace.flush()
    assert [span["args"]["step"] for span in spans(tmp_path / TRACE)] == [1, 2]


def test_the_files_hold_the_newest_spans_within_the_limit(tmp_path: Path) -> None:
    limit = 20_000
    trace = Trace(tmp_path, limit)
    for step in range(1000):
        with trace.span(RUN, "train", step=step):
            pass
        trace.flush()
    files = [tmp_path / PREVIOUS, tmp_path / TRACE]
    assert sum(file.stat().st_size for file in files) < limit + 1000
    steps = [span["args"]["step"] for file in files for span in spans(file)]
    assert steps == list(range(steps[0], 1000))
    assert len(steps) > 50


def test_without_a_limit_nothing_is_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path, 0)
    with trace.span(RUN, "train", step=1):
        pass
    trace.end("completed")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = Trace(tmp_path / "gone", 2**20)
    for step in range(3):
        with trace.span(RUN, "train", step=step):
            pass
        trace.flush()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "trace.json could not be written: [Errno 2]" in record.getMessage()


@pytest.mark.parametrize(
    ("track", "name", "told"),
    [
        (REWARDS, "reward", "this run waits for the scores of 1 groups (--reward-timeout)."),
        (RUN, "evaluate", "this run waits for generators (--generator-timeout)."),
        ("engine 0", "generate", None),
    ],
)
async def test_a_run_that_waits_for_no_engine_says_for_what(track: str, name: str, told: str | None) -> None:
    trace, said = Trace(engines=1), list[str]()
    asking = asyncio.create_task(trace.tell_idle(said.append, 0.05))
    await asyncio.sleep(0.15)
    with trace.span(RUN, "rollout"), trace.span(track, name):
        await asyncio.sleep(0.3)
    asking.cancel()
    assert [one.partition("engine: ")[2] for one in said] == ([told] * len(said) if told else [])
    assert len(said) in ((1, 2) if told else (0,)), "the time doubles"
