"""What each metric means, as the documentation says it (`metrics.json`, by scripts/metric_texts.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from rlcore import Json


def described(names: Iterable[str]) -> Json:
    """Name → `[text, page, key]` of each page that describes it, by the key that says most of the name."""
    return {name: texts for name in sorted(set(names)) if (texts := _texts(name))}


def reference() -> Json:
    """`[key, text, page]` of every metric that the documentation explains."""
    file = resources.files("rlcore_view") / "metrics.json"
    return json.loads(file.read_text("utf-8"))


def _texts(name: str) -> list[list[str]]:
    matching = [(length, rest) for names, length, *rest in _known() if names.fullmatch(name)]
    most = max((length for length, _ in matching), default=0)
    return [rest for length, rest in matching if length == most]


@cache
def _known() -> list[tuple[re.Pattern[str], int, str, str, str]]:
    """Pattern of names, what it says of them in characters, text, page and key.

    A placeholder, as in `eval/<set>/score`, stands for anything without a slash.
    """
    known = []
    for key, text, page in reference():
        parts = re.split(r"<[^>]+>", key)
        pattern = re.compile("[^/]+".join(map(re.escape, parts)))
        known.append((pattern, sum(map(len, parts)), text, page, key))
    return known
