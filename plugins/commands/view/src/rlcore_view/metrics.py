"""`metrics.jsonl` as columns, read further while the run goes on."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rlcore import Json, parse_json

MOST_POINTS = 1000
"""Points of one curve that are shown; of more, the least and the greatest of each stretch."""
MOST_BARS = 200
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
        self._forget(0)

    def _forget(self, inode: int) -> None:
        self._inode, self._offset = inode, 0
        self.columns: dict[str, Column] = {}
        self.axes: dict[str, array[float]] = {name: array("d") for name in AXES}
        self.broken = 0

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

    @property
    def last_step(self) -> int | None:
        """None before the first row."""
        steps = self.axes["step"]
        return int(steps[-1]) if steps else None

    def last(self, name: str) -> float | None:
        """The newest value of a metric."""
        column = self.columns.get(name)
        return None if column is None else column.values[-1]

    def as_json(self) -> Json:
        """`axes`: what a step is in seconds and response tokens; `series`: steps and values by metric."""
        steps = self.axes["step"]
        places = range(0, len(steps), max(1, len(steps) // MOST_POINTS))
        axes = {name: [rounded(axis[i]) for i in places] for name, axis in self.axes.items()}
        return {
            "axes": axes,
            "series": {name: column.points() for name, column in sorted(self.columns.items())},
        }

    def lost(self) -> Json:
        """Of each metric that counts what was dropped or failed, where it ever was above 0.

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
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row
            else:
                self.broken += 1

    def _add(self, row: dict[str, Json]) -> None:
        step = row["step"]
        seconds = sum(_number(row.get(name)) for name in _SECONDS)
        for axis, value in zip(AXES, (step, seconds, _number(row.get(_TOKENS))), strict=True):
            so_far = self.axes[axis]
            so_far.append(value + (so_far[-1] if so_far and axis != "step" else 0))
        for name, value in row.items():
            if name != "step" and (value is None or isinstance(value, int | float)):
                column = self.columns.setdefault(name, Column())
                column.steps.append(step)
                column.values.append(math.nan if value is None else value)


def _counted(column: Column) -> Json:
    steps, values = column.steps, [value if math.isfinite(value) else 0.0 for value in column.values]
    having = [step for step, value in zip(steps, values, strict=True) if value > 0]
    width = -(-len(values) // MOST_BARS)
    starts = range(0, len(values), width)
    means = [sum(values[i : i + width]) / len(values[i : i + width]) for i in starts]
    return {
        "total": rounded(sum(values)),
        "steps": len(having),
        "first": having[0],
        "last": having[-1],
        "bars": [[steps[i] for i in starts], [rounded(mean) for mean in means]],
    }


def rounded(value: float) -> float | None:
    """With 6 digits: enough for a picture."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _number(value: Json) -> float:
    return value if isinstance(value, int | float) else 0.0


def _places(values: array[float]) -> list[int]:
    """Of the values to draw: all, or the extremes of each stretch, so that no peak is lost."""
    count = len(values)
    if count <= MOST_POINTS:
        return list(range(count))
    kept = {0, count - 1}
    stretches = MOST_POINTS // 2
    for stretch in range(stretches):
        part = range(stretch * count // stretches, (stretch + 1) * count // stretches)
        finite = [i for i in part if math.isfinite(values[i])]
        # a stretch that has none is a gap
        kept |= (
            {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
            if finite
            else {part[0]}
        )
    return sorted(kept)
