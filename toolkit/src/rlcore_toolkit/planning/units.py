"""Counts and bytes in the unit that fits their size."""

from collections.abc import Iterable

GB = 10**9
MB = 10**6
KB = 10**3
"""Bytes; `--engine.bucket-mb` counts in MB."""
_COUNTS = ((10**9, "B"), (10**6, "million"), (10**3, "thousand"))
_SIZES = ((GB, "GB"), (MB, "MB"), (KB, "kB"))
_ROUNDED_UP = 0.9995
"""From this share of a unit on, a number in the next smaller one would be 1000."""


def count_text(count: int) -> str:
    """`7.62 B`, `98.3 thousand`; below a thousand, the number."""
    return _in_unit(count, _COUNTS) or str(count)


def counted(count: int, what: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def size_text(size: float) -> str:
    """Bytes as `15.2 GB`, `196 kB`, `512 bytes`."""
    return _in_unit(size, _SIZES) or (f"{size:.0f} bytes" if size else "0 GB")


def _in_unit(value: float, units: Iterable[tuple[int, str]]) -> str:
    """`value` with three digits in the first of `units`, the largest first, that it fills; else empty."""
    for unit, name in units:
        if (share := value / unit) >= _ROUNDED_UP:
            return f"{share:.{0 if share >= 99.95 else 1 if share >= 9.995 else 2}f} {name}"
    return ""
