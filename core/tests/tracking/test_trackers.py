"""Trackers: told in order, in threads of their own; one that fails, hangs or lags costs one warning."""

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlcore import CheckpointError, PluginError, RunInfo, Tracker
from rlcore.tracking import trackers as module
from rlcore.tracking.trackers import Trackers
from rlcore_testing.display import SilentDisplay

LIMIT = 20.0


def info(folder: Path = Path("/nowhere")) -> RunInfo:
    return RunInfo(folder=folder, settings={"lr": 0.1}, plugins={}, step=0)


def run(*steps: int, folder: Path = Path("/nowhere"), **found: Tracker) -> None:
    """A run of these steps that is told to its end."""
    told = Trackers(found, SilentDisplay())
    told.start(info(folder))
    for step in steps:
        told.metrics({"step": step})
    told.end("completed")


class Diary(Tracker):
    """Notes every event, and who told it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.threads: set[int] = set()

    def note(self, event: str, about: Any) -> None:
        self.events.append((event, about))
        self.threads.add(threading.get_ident())

    def start(self, run: RunInfo) -> None:
        self.note("start", run.step)

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.note("metrics", (step, dict(metrics)))

    def evaluation(self, step: int, samples: Any) -> None:
        self.note("evaluation", (step, samples))

    def rollout(self, step: int, samples: Any) -> None:
        self.note("rollout", (step, samples))

    def checkpoint(self, step: int, folder: Path) -> None:
        self.note("checkpoint", (step, folder))

    def end(self, reason: str) -> None:
        self.note("end", reason)


def test_every_event_arrives_in_order_and_in_one_thread() -> None:
    diary = Diary()
    told = Trackers({"diary": diary}, SilentDisplay())
    told.start(info())
    told.evaluation(0, {"easy": []})
    row = {"step": 1, "train/loss": 0.5}
    told.rollout(1, [])
    told.metrics(row)
    row["train/loss"] = 9  # the caller's own afterwards
    told.checkpoint(1, Path("/run/checkpoints/1"))
    told.end("stopped")
    assert diary.events == [
        ("start", 0),
        ("evaluation", (0, {"easy": []})),
        ("rollout", (1, [])),
        ("metrics", (1, {"step": 1, "train/loss": 0.5})),
        ("checkpoint", (1, Path("/run/checkpoints/1"))),
        ("end", "stopped"),
    ]
    assert len(diary.threads) == 1
    assert threading.get_ident() not in diary.threads


class Broken(Diary):
    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        super().metrics(step, metrics)
        raise OSError(f"the server refused step {step}")


def test_one_that_raises_warns_once_and_is_told_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    broken, other = Broken(), Diary()
    run(1, 2, 3, post=broken, other=other)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == (
        "The tracker 'post' failed at 'metrics': OSError: the server refused step 1. The run goes on."
    )
    assert [event for event, _ in broken.events] == ["start", "metrics", "metrics", "metrics", "end"]
    assert other.events == broken.events


class Unborn(Diary):
    def start(self, run: RunInfo) -> None:
        raise SystemExit("no account")


def test_one_that_could_not_start_is_told_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    unborn = Unborn()
    run(1, 2, unborn=unborn)
    assert unborn.events == []
    (record,) = caplog.records
    assert "'unborn' failed at 'start': SystemExit: no account" in record.getMessage()


class Hanging(Diary):
    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.may_go.wait(LIMIT)
        super().metrics(step, metrics)


def test_one_that_hangs_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.05)
    hanging, other = Hanging(), Diary()
    begin = time.monotonic()
    run(1, hanging=hanging, other=other)
    assert time.monotonic() - begin < LIMIT / 4
    hanging.may_go.set()
    assert [event for event, _ in other.events] == ["start", "metrics", "end"]
    (record,) = caplog.records
    assert "'hanging' is still at work at the end of the run" in record.getMessage()


def test_one_that_lags_loses_what_it_is_too_late_for_but_never_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAITING", 3)
    slow = Hanging()
    told = Trackers({"slow": slow}, SilentDisplay())
    told.start(info())
    for step in range(1, 20):
        told.metrics({"step": step})
    slow.may_go.set()
    told.end("completed")
    assert 1 <= len(slow.events) - 2 <= 5
    assert slow.events[-1] == ("end", "completed")
    (record,) = caplog.records
    assert "'slow' is 3 events behind" in record.getMessage()


class Vital(Diary):
    essential: ClassVar[bool] = True

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        raise CheckpointError("the disk is full")

    def checkpoint(self, step: int, folder: Path) -> None:
        raise KeyError("run")


def test_an_essential_one_is_told_at_once_and_its_error_ends_the_run() -> None:
    vital = Vital()
    told = Trackers({"vital": vital}, SilentDisplay())
    told.start(info())
    assert vital.threads == {threading.get_ident()}
    with pytest.raises(CheckpointError, match="the disk is full"):
        told.metrics({"step": 1})
    told.end("failed")
    assert vital.events[-1] == ("end", "failed")
    with pytest.raises(PluginError, match=r"^The tracker 'vital' failed: KeyError: 'run' \(.*\)\.$"):
        told.checkpoint(1, Path())
