"""Marks within an expanded word: where words end, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Sequence

SPLIT, EMPTY, HELD, HELD_QUOTED, END = "\0\1\2\3\4"
"""Marks: words end here, "", an unknown value outside of quotes, one within, and where it ends."""

MARKED = re.compile(f"([{HELD}{HELD_QUOTED}])([^{END}]*){END}")


def plain(text: str) -> str:
    """`text` without the marks of what is unknown."""
    return MARKED.sub(lambda held: held[2], text).replace(EMPTY, "")


def counted(items: Sequence[str]) -> bool:
    """Whether each is one word: an unknown value without quotes may be none, or two."""
    return not any(HELD in item or (HELD_QUOTED in item and "[@]" in item) for item in items)


def is_known(text: str) -> bool:
    """Whether `text` has no such marks."""
    return MARKED.search(text) is None
