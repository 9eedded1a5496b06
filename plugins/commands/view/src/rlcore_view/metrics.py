"""`metrics.jsonl` as columns, read further while the run goes on."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlcore import Json, parse_json
from rlcore_toolkit import Alerts

MOST_POINTS = 1000
"""Points of one curve that are shown; of more, the least and the greatest of each stretch."""
MOST_BARS = 200
END_BYTES = 64 * 2**10
"""The bytes at the end of the file that say how far a run is."""
LOST = re.compile(
    r"rollout/(groups_dropped/.+|failed/.+|aborted|failed|crashed|reward_failed|reward_timed_out"
    r"|tokens_discarded|groups_missing)"
)
"""Metrics that count what was not trained on."""
AXES = ("step", "seconds", "tokens")
_SECONDS = ("time/step_s", "time/eval_s")
_TOKENS = "rollout/response_tokens"


@dataclass
class Column:
    """The values of one metric, and the steps that have it."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def points(self) -> list[list[Json]]:
        """Steps and values to draw; null: not finite."""
        places = _places(self.values)
        return [[self.steps[i] for i in places], [rounded(self.values[i]) for i in places]]


class Metrics:
    """The rows of the file at `path` so far. `broken`: lines that are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: tuple[tuple[int, int], list[dict[str, Json]]] = ((0, 0), [])
        self._forget(0)

    def _forget(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self.columns: dict[str, Column] = {}
        self.axes: dict[str, array[float]] = {name: array("d") for name in AXES}
        self.broken = 0
        self._alerts = Alerts()

    def read(self) -> None:
        """Read what was added; all of it, where the file is another one (a resumed run makes it anew)."""
        try:
            stat = self._path.stat()
        except OSError:
            self._forget(0)
            return
        if stat.st_ino != self._inode or stat.st_size < self._offset:
            self._forget(stat.st_ino)
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for row in self._rows(whole):
            self._add(row)

    def newest(self) -> list[dict[str, Json]]:
        """The rows at the end of the file, for which no other is read."""
        try:
            stat = self._path.stat()
            if self._newest[0] != (stat.st_mtime_ns, stat.st_size):
                with self._path.open("rb") as file:
                    file.seek(max(0, stat.st_size - END_BYTES))
                    lines = file.read().split(b"\n")[:-1]
                rows = [row for line in lines if (row := _row(line)) is not None]
                self._newest = ((stat.st_mtime_ns, stat.st_size), rows)
        except OSError:
            return []
        return self._newest[1]

    def as_json(self) -> Json:
        """`axes`: what a step is in seconds and response tokens; `series`: steps and values by metric.

        `broken`: how many lines of the file are no rows.
        """
        steps = self.axes["step"]
        places = range(0, len(steps), max(1, len(steps) // MOST_POINTS))
        axes = {name: [rounded(axis[i]) for i in places] for name, axis in self.axes.items()}
        series = {name: column.points() for name, column in sorted(self.columns.items())}
        return {"axes": axes, "series": series, "broken": self.broken}

    def alerts(self) -> Json:
        """What `rlcore train` warns of, the newest of each; `is_now`: at the last step too."""
        found = self._alerts.found.values()
        last = self.axes["step"][-1] if found else 0
        return [{**asdict(alert), "is_now": alert.last >= last} for alert in found]

    def lost(self) -> Json:
        """The metrics that count what was dropped or failed, where one ever was above 0.

        `total` over all steps, how many `steps` had it, the `first` and `last` of them, and `bars`: steps and
        the mean count of a stretch around each.
        """
        return {
            name: _counted(column)
            for name, column in sorted(self.columns.items())
            if LOST.fullmatch(name) and any(value > 0 for value in column.values)
        }

    def _rows(self, data: bytes) -> Iterator[dict[str, Json]]:
        for line in data.splitlines():
            if (row := _row(line)) is None:
                self.broken += 1
            else:
                yield row

    def _add(self, row: dict[str, Json]) -> None:
        step = row["step"]
        self._alerts.add(row)
        seconds = sum(_number(row.get(name)) for name in _SECONDS)
        for axis, value in zip(AXES, (step, seconds, _number(row.get(_TOKENS))), strict=True):
            so_far = self.axes[axis]
            so_far.append(value + (so_far[-1] if so_far and axis != "step" else 0))
        for name, value in row.items():
            if name != "step" and (value is None or isinstance(value, int | float)):
                column = self.columns.setdefault(name, Column())
                column.steps.append(step)
                column.values.append(math.nan if value is None else value)


def _row(line: bytes) -> dict[str, Json] | None:
    """None for what is no row of metrics."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _counted(column: Column) -> Json:
    steps, values = column.steps, [value if math.isfinite(value) else 0.0 for value in column.values]
    having = [step for step, value in zip(steps, values, strict=True) if value > 0]
    width = -(-len(values) // MOST_BARS)
    starts = range(0, len(values), width)
    means = [sum(values[i : i + width]) / len(values[i : i + width]) for i in starts]
    span = {"steps": len(having), "first": having[0], "last": having[-1]}
    bars = [[steps[i] for i in starts], [rounded(mean) for mean in means]]
    return {"total": rounded(sum(values)), **span, "bars": bars}


def rounded(value: float) -> float | None:
    """With 6 digits: enough for a picture."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _number(value: Json) -> float:
    return value if isinstance(value, int | float) else 0.0


def _places(values: array[float]) -> list[int]:
    """The places of the values to draw: all, or the extremes of each stretch, so that no peak is lost."""
    count = len(values)
    if count <= MOST_POINTS:
        return list(range(count))
    kept = {0, count - 1}
    stretches = MOST_POINTS // 2
    for stretch in range(stretches):
        part = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        finite = [i for i in part if math.isfinite(values[i])]
        # a stretch that has none is a gap
        ends = finite or [part[0]]
        kept |= {min(ends, key=values.__getitem__), max(ends, key=values.__getitem__)}
    return sorted(kept)
