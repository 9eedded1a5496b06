"""`TerminalDisplay`: a live table on a terminal, plain lines elsewhere."""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

from rlcore.api.types import Json
from rlcore.checkpoint.folder import newest_complete
from rlcore.preparation.run_folder import CHECKPOINTS
from rlcore.tracking.display import Summary
from rlcore.tracking.run_files import METRICS_FILE, read_metrics
from rlcore_cli.columns import COLUMNS, Column, cells
from rlcore_cli.curve import MARKS, REWARD, curve, points_of
from rlcore_cli.run_log import RunLog
from rlcore_toolkit import Alerts

_log = logging.getLogger(__name__)

PLAIN_WIDTH = 80
_LARGE = 1e8
"""A checkpoint with fewer bytes is not worth a line."""
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
        self._alerts = Alerts()
        self._told: set[str] = set()
        self._earlier: Path | None = None
        self._log = RunLog()

    def __enter__(self) -> "TerminalDisplay":
        stream = self._stream
        if stream.isatty() and stream.encoding.lower().startswith("utf"):
            from rlcore_cli.live import LiveScreen

            self._screen = LiveScreen(stream, self._steps, self._columns)
        logging.getLogger().addHandler(self._log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()
        if error is not None:
            self._log.write(f"error: {error}" if str(error) else f"ended by {type(error).__name__}")
        logging.getLogger().removeHandler(self._log)
        self._log.close()

    def expect(self, steps: int, folder: Path) -> None:
        """The number of steps, once the data have decided it (`--epochs`), and where the log is kept."""
        self._steps = steps
        self._screen.expect(steps)
        self._log.open(folder)
        self._earlier = folder / METRICS_FILE

    def phase(self, text: str) -> None:
        """Say what the run does now, before its first step or between steps."""
        self._screen.phase(text)
        self._log.write(text)

    def note(self, line: str) -> None:
        """Tell the user something about the run that is no error."""
        self._screen.print(f"note: {line}")
        self._log.write(f"note: {line}")

    def step(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included; step 0 is the evaluation before training.

        An alert is a warning, once a run.
        """
        self._screen.step(row)
        self._log.write(_step_line(row, self._steps, self._columns))
        self._recall(int(row["step"]))
        for alert in self._alerts.add(row):
            if alert.name not in self._told:
                self._told.add(alert.name)
                _log.warning("%s", alert.sentence)

    def _recall(self, step: int) -> None:
        """Look at the rows of a resumed run before `step`; they were warned of."""
        rows = read_metrics(self._earlier) if self._earlier is not None and self._earlier.exists() else []
        self._told |= {
            alert.name for row in rows if int(row["step"]) < step for alert in self._alerts.add(row)
        }
        self._earlier = None

    def finish(self, summary: Summary) -> None:
        """The curve of the whole run (earlier parts included), its scores and its folder."""
        self._screen.close()
        metrics = Path(summary.run) / METRICS_FILE
        rows = read_metrics(metrics) if metrics.exists() else []  # a run may end before its first row
        said = self._closing(summary, rows)
        for line in ["", *self._plot(rows), "", *said]:
            self._screen.print(line)
        for line in said:
            self._log.write(line)
        if self._json:
            print(summary.to_json(), flush=True)

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._json else sys.stdout

    def _closing(self, summary: Summary, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in summary.eval.items())
        lines = [f"{summary.exit_reason}: step {summary.steps} after {summary.seconds:.1f} s"]
        if scores:
            lines.append(f"evaluation: {scores}")
        if left_out := _left_out(rows):
            lines.append(left_out)
        return [*lines, *_checkpoint(Path(summary.run)), f"run folder: {summary.run}"]

    def _plot(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        key, points, sets = points_of(rows)
        line = "mean reward" if key == REWARD else "loss"
        legend = [
            f"⠤ {line}",
            *(f"{mark} eval {name}" for mark, name in zip(cycle(MARKS), sets, strict=False)),
        ]
        plot = curve(points, sets, width=min(self._screen.width, 100))
        return ["  ".join(legend), *plot] if plot else []


def _left_out(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many samples of a run have failed; empty: none. Too many make what it learned from another set."""
    failed = {name: sum(row.get(f"rollout/{name}") or 0 for row in rows) for name in _FAILURES}
    counted = ", ".join(f"{name} {count:g}" for name, count in failed.items() if count)
    samples = sum(row.get("rollout/samples") or 0 for row in rows)
    return f"samples that failed: {counted}; {samples:g} did not" if counted else ""


def _step_line(row: Mapping[str, Json], steps: int, columns: Sequence[Column]) -> str:
    """A step as one line of text."""
    pairs = zip(columns, cells(row, columns), strict=True)
    line = "  ".join(f"{column.title} {cell}" for column, cell in pairs if cell)
    first = " (before training)" if row["step"] == 0 else ""
    return f"step {row['step']}/{steps}{first}  {line}".rstrip()


def _checkpoint(run: Path) -> list[str]:
    """A line with the size of the newest checkpoint, if that is large."""
    newest = newest_complete(run / CHECKPOINTS)
    if newest is None:
        return []
    size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    return [f"checkpoint: step {newest.name}, {size / 1e9:.1f} GB"] if size > _LARGE else []


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
        self.phase(_step_line(row, self._steps, self._columns))

    def print(self, line: str) -> None:
        encoding = self._stream.encoding or "ascii"
        print(line.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)

    def close(self) -> None: ...
