"""A line plot in the terminal, drawn with braille dots (2 by 4 in a character)."""

from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from rlcore_cli.columns import evaluations

REWARD, LOSS = "rollout/reward_mean", "train/loss"
Points = Sequence[tuple[float, float]]
"""(x, y), by growing x."""

MARKS = "●◆▲■"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_LABEL = 8


def points_of(rows: Sequence[Mapping[str, Any]]) -> tuple[str, Points, Mapping[str, Points]]:
    """What to draw of a run's rows: `REWARD` or else `LOSS`, its points, and those of each held-out set."""
    key = REWARD if any(REWARD in row for row in rows) else LOSS
    sets: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, score in evaluations(row).items():
            sets.setdefault(name, []).append((row.get("eval/step", row["step"]), score))
    return key, [(row["step"], row[key]) for row in rows if row.get(key) is not None], sets


def curve(line: Points, marked: Mapping[str, Points], *, width: int, height: int = 12) -> list[str]:
    """Text lines of a plot: `line` as a line, and the points of each of `marked` with a mark of its own.

    The y axis goes from the least value to the greatest. Without points, the list is empty.
    """
    every = [*line, *(point for points in marked.values() for point in points)]
    if not every:
        return []
    frame = _Frame(every, max(width - _LABEL - 2, 8), height)
    cells = [[0x2800] * frame.width for _ in range(height)]
    for column, row in _joined([frame.dot(point) for point in line]):
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    text = [[chr(cell) for cell in row] for row in cells]
    for mark, points in zip(cycle(MARKS), marked.values(), strict=False):
        for column, row in map(frame.dot, points):
            text[row // 4][column // 2] = mark
    return [*_with_y_axis(text, frame), *_x_axis(frame)]


class _Frame:
    """Maps values to dots; `width` and `height` in characters."""

    def __init__(self, points: Points, width: int, height: int) -> None:
        xs, ys = [x for x, _ in points], [y for _, y in points]
        self.width, self.height = width, height
        self.left, self.right = min(xs), max(xs)
        self.low, self.high = min(ys), max(ys)
        if self.low == self.high:  # a constant lies in the middle, and 0 at the bottom
            around = abs(self.low) / 2
            self.low, self.high = self.low - around, self.high + (around or 1.0)

    def dot(self, point: tuple[float, float]) -> tuple[int, int]:
        """Column and row of a point's dot, row 0 at the top."""
        across = (point[0] - self.left) / ((self.right - self.left) or 1)
        up = (point[1] - self.low) / ((self.high - self.low) or 1)
        return round(across * (2 * self.width - 1)), round((1 - up) * (4 * self.height - 1))


def _joined(dots: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The dots and those on the straight lines between neighbours."""
    points = list(dots[:1])
    for (x0, y0), (x1, y1) in pairwise(dots):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        parts = [i / steps for i in range(1, steps + 1)]
        points += [(x0 + round((x1 - x0) * part), y0 + round((y1 - y0) * part)) for part in parts]
    return points


def _with_y_axis(text: Sequence[Sequence[str]], frame: _Frame) -> list[str]:
    ticks = {
        0: frame.high,
        (frame.height - 1) // 2: (frame.high + frame.low) / 2,
        frame.height - 1: frame.low,
    }
    digits = next(
        (n for n in range(3, _LABEL - 2) if len({f"{tick:.{n}g}" for tick in ticks.values()}) == 3), 3
    )
    return [
        f"{ticks[i]:>{_LABEL}.{digits}g} ┤{''.join(row)}" if i in ticks else f"{'':>{_LABEL}} │{''.join(row)}"
        for i, row in enumerate(text)
    ]


def _x_axis(frame: _Frame) -> list[str]:
    left, right = f"{frame.left:g}", f"{frame.right:g}"
    return [
        f"{'':>{_LABEL}} └{'─' * frame.width}",
        f"{'':>{_LABEL}}  {left}{right:>{frame.width - len(left)}}",
    ]
