"""`a{1,2}` and `{1..3}`: the words that braces stand for."""

from __future__ import annotations

import itertools
import re

from rlcore import ConfigError
from rlcore_import.bash.words import after_element

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.-?(\d+))?")
MOST = 10_000
"""Words of a list that are read."""


def braced(word: str) -> list[str]:
    """`a{1,2}` as a1 and a2, and `{1..3}` as 1, 2 and 3."""
    at = 0
    while at < len(word):
        if word[at] == "{" and (found := _alternatives(word, at)):
            parts, end = found
            return [one for part in parts for one in braced(f"{word[:at]}{part}{word[end:]}")]
        try:
            at = after_element(word, at)
        except ValueError:
            at += 1
    return [word]


def _alternatives(word: str, start: int) -> tuple[list[str], int] | None:
    """Of the brace at `start`, and where it ends; None: it stands for itself."""
    depth, at, parts = 0, start, [start + 1]
    while at < len(word):
        if word[at] == "}" and depth == 1:
            inside = [word[a : b - 1] for a, b in itertools.pairwise([*parts, at + 1])]
            if len(inside) == 1:
                inside = _numbers(inside[0])
            return (inside, at + 1) if inside else None
        depth += (word[at] == "{") - (word[at] == "}")
        if word[at] == "," and depth == 1:
            parts.append(at + 1)
        at = at + 1 if word[at] in "{}," else after_element(word, at)
    return None


def _numbers(inside: str) -> list[str]:
    numbers = _NUMBERS.fullmatch(inside)
    if numbers is None:
        return []
    first, last, step = int(numbers[1]), int(numbers[2]), int(numbers[3] or 1) or 1
    if abs(first - last) > MOST * step:
        raise ConfigError(f"found {{{inside}}}, expected at most {MOST} words; write fewer.")
    padded = any(re.match(r"-?0\d", end) for end in numbers.groups()[:2])
    width = max(len(numbers[1]), len(numbers[2])) if padded else 0
    down = first > last
    return [f"{one:0{width}}" for one in range(first, last + (-1 if down else 1), -step if down else step)]
