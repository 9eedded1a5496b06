"""`run_html`: the last steps of a run and its curve, as a notebook shows them."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

from rlcore_cli.columns import COLUMNS, RESPONSE_COLUMNS, cells
from rlcore_cli.curve import REWARD, Points, points_of

SHOWN_STEPS = 8
_WIDTH, _HEIGHT, _LEFT, _BELOW = 640, 170, 60, 18
_COLORS = ("#e07b28", "#2a9d76", "#c2457f", "#8a63c9")
_STYLE = "font-variant-numeric:tabular-nums;text-align:right"


def run_html(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The mean reward (or the loss) and each set's score over the steps as an SVG, then a table."""
    key, line, sets = points_of(rows)
    plot = _svg(key, line, {f"eval {name}": points for name, points in sets.items()})
    return f"<div><b>{escape(title)}</b>{plot}{_table(rows)}</div>"


def _svg(key: str, line: Points, sets: Mapping[str, Points]) -> str:
    every = [*line, *(point for points in sets.values() for point in points)]
    if not every:
        return "<p>No step yet.</p>"
    (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*every, strict=True))

    def place(point: tuple[float, float]) -> tuple[str, str]:
        across = (point[0] - left) / ((right - left) or 1)
        up = (point[1] - low) / ((high - low) or 1)
        return f"{_LEFT + across * (_WIDTH - _LEFT - 8):.1f}", f"{8 + (1 - up) * (_HEIGHT - _BELOW - 16):.1f}"

    def text(x: float, y: float, said: str, anchor: str = "end") -> str:
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(said)}</text>'

    path = " ".join(",".join(place(point)) for point in line)
    dots = "".join(
        f'<circle cx="{place(point)[0]}" cy="{place(point)[1]}" r="3.5" fill="{color}"/>'
        for color, points in zip(cycle(_COLORS), sets.values(), strict=False)
        for point in points
    )
    bottom = _HEIGHT - _BELOW - 8
    labels = [text(_LEFT - 6, 12, f"{high:.4g}"), text(_LEFT - 6, bottom + 4, f"{low:.4g}")]
    labels += [text(_LEFT, _HEIGHT - 4, f"{left:g}", "start"), text(_WIDTH - 8, _HEIGHT - 4, f"{right:g}")]
    legend = f'<span style="color:#3b6fd4">— {escape(key)}</span>' + "".join(
        f' &nbsp; <span style="color:{color}">● {escape(name)}</span>'
        for color, name in zip(cycle(_COLORS), sets, strict=False)
    )
    return (
        f'<div style="font-size:12px">{legend}</div><svg width="{_WIDTH}" height="{_HEIGHT}" font-size="11" '
        f'fill="currentColor" role="img"><path d="M{_LEFT} 4V{bottom + 4}H{_WIDTH - 4}" fill="none" '
        f'stroke="currentColor" opacity="0.3"/><polyline points="{path}" fill="none" stroke="#3b6fd4" '
        f'stroke-width="1.6"/>{dots}{"".join(labels)}</svg>'
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The last steps, in the columns of the live table that have a value in one of them."""
    shown = [row for row in rows if any(cells(row))][-SHOWN_STEPS:]
    every = COLUMNS if any(REWARD in row for row in shown) else RESPONSE_COLUMNS
    columns = [column for column in every if any(cells(row, [column])[0] for row in shown)]
    head = "".join(
        f'<th style="{_STYLE}">{escape(name)}</th>' for name in ("step", *(c.title for c in columns))
    )
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{_STYLE}">{text}</td>' for text in (row["step"], *cells(row, columns)))
        + "</tr>"
        for row in shown
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if shown else ""
