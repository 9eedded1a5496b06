"""Counts and bytes in the unit that fits their size."""

from __future__ import annotations

from collections.abc import Iterable

GB, MB, KB = 10**9, 10**6, 10**3
_COUNTS = ((10**8, 10**9, "B"), (10**6, 10**6, "million"), (0, 10**3, "thousand"))
"""From this count on, what is counted, and its name."""


def count_text(count: int) -> str:
    """`7.62 B`, `98.3 thousand`."""
    unit, name = next((unit, name) for least, unit, name in _COUNTS if count >= least)
    return f"{_short(count / unit)} {name}"


def size_text(size: float) -> str:
    """Bytes as `15.2 GB`, `196 kB`."""
    if not size:
        return "0 GB"
    unit, name = next((one for one in ((GB, "GB"), (MB, "MB")) if size >= one[0]), (KB, "kB"))
    return f"{_short(size / unit)} {name}"


def table_unit(sizes: Iterable[float]) -> tuple[int, str]:
    """The bytes and the name of the one unit for all numbers of a table."""
    return (GB, "GB") if max(sizes, default=0) >= GB else (MB, "MB")


def _short(value: float) -> str:
    """At least three digits."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
