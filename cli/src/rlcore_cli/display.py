"""`TerminalDisplay`: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rlcore.api.types import Json
from rlcore.runtime.run_folder import METRICS_FILE, read_metrics
from rlcore_cli.columns import COLUMNS, Column, cells, evaluations
from rlcore_cli.curve import MARKS, Points, curve

if TYPE_CHECKING:
    from rlcore.tracking.display import Summary

PLAIN_WIDTH = 80
_FAILURES = ("crashed", "failed", "reward_failed", "reward_timed_out")
"""Metrics of the rollout that count samples which nobody trains on, and which nobody meant to leave out."""


class _Screen(Protocol):
    """How progress is shown; `width` in characters."""

    @property
    def width(self) -> int: ...
    def expect(self, steps: int) -> None: ...
    def phase(self, text: str) -> None: ...
    def step(self, row: Mapping[str, Json]) -> None: ...
    def print(self, line: str) -> None: ...
    def close(self) -> None: ...


class TerminalDisplay:
    """Shows a run of `steps` steps. A context manager.

    With `json`, progress goes to stderr and stdout gets one JSON object, at the end.
    """

    def __init__(self, *, json: bool, steps: int, columns: Sequence[Column] = COLUMNS) -> None:
        self._json, self._steps, self._columns = json, steps, columns
        self._screen: _Screen = _PlainScreen(self._stream, steps, columns)

    def __enter__(self) -> TerminalDisplay:
        stream = self._stream
        if stream.isatty() and stream.encoding.lower().startswith("utf"):
            from rlcore_cli.live import LiveScreen

            self._screen = LiveScreen(stream, self._steps, self._columns)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()

    def expect(self, steps: int) -> None:
        """The number of steps, once the data have decided it (`--epochs`)."""
        self._screen.expect(steps)

    def phase(self, text: str) -> None:
        """Say what the run does now, before its first step or between steps."""
        self._screen.phase(text)

    def note(self, line: str) -> None:
        """Tell the user something about the run that is no error."""
        self._screen.print(f"note: {line}")

    def step(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included; step 0 is the evaluation before training."""
        self._screen.step(row)

    def finish(self, summary: Summary) -> None:
        """The curve of the whole run (earlier parts included), its scores and its folder."""
        self._screen.close()
        for line in self._closing(summary):
            self._screen.print(line)
        if self._json:
            print(summary.to_json(), flush=True)

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._json else sys.stdout

    def _closing(self, summary: Summary) -> list[str]:
        metrics = Path(summary.run) / METRICS_FILE
        rows = read_metrics(metrics) if metrics.exists() else []  # a run may end before its first row
        lines = ["", *self._plot(rows), ""]
        scores = ", ".join(f"{name} {score:.3f}" for name, score in summary.eval.items())
        lines.append(f"{summary.exit_reason}: step {summary.steps} after {summary.seconds:.1f} s")
        if scores:
            lines.append(f"evaluation: {scores}")
        if left_out := _left_out(rows):
            lines.append(left_out)
        return [*lines, f"run folder: {summary.run}"]

    def _plot(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        line, key = "mean reward", "rollout/reward_mean"
        if not any(key in row for row in rows):
            line, key = "loss", "train/loss"
        points: Points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        sets: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            for name, score in evaluations(row).items():
                sets.setdefault(name, []).append(
                    (row["eval/step"] if "eval/step" in row else row["step"], score)
                )
        legend = [f"⠤ {line}", *(f"{mark} eval {name}" for mark, name in zip(MARKS, sets, strict=False))]
        plot = curve(points, sets, width=min(self._screen.width, 100))
        return ["  ".join(legend), *plot] if plot else []


def _left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many samples of a run have failed; empty: none. Too many make what it learned from another set."""
    failed = {name: sum(row.get(f"rollout/{name}") or 0 for row in rows) for name in _FAILURES}
    counted = ", ".join(f"{name} {count:g}" for name, count in failed.items() if count)
    samples = sum(row.get("rollout/samples") or 0 for row in rows)
    return f"samples that failed: {counted}; {samples:g} did not" if counted else ""


class _PlainScreen:
    """One line for each phase and each step."""

    width = PLAIN_WIDTH

    def __init__(self, stream: TextIO, steps: int, columns: Sequence[Column]) -> None:
        self._stream, self._steps, self._columns = stream, steps, columns
        self._begin = time.monotonic()

    def expect(self, steps: int) -> None:
        self._steps = steps

    def phase(self, text: str) -> None:
        self.print(f"[{time.monotonic() - self._begin:6.1f} s] {text}")

    def step(self, row: Mapping[str, Json]) -> None:
        pairs = zip(self._columns, cells(row, self._columns), strict=True)
        shown = "  ".join(f"{column.title} {cell}" for column, cell in pairs if cell)
        first = " (before training)" if row["step"] == 0 else ""
        self.phase(f"step {row['step']}/{self._steps}{first}  {shown}".rstrip())

    def print(self, line: str) -> None:
        encoding = self._stream.encoding or "ascii"
        print(line.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)

    def close(self) -> None: ...
