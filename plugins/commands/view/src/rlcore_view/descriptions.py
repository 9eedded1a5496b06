"""What each metric means, as the documentation says it (`metrics.json`, by scripts/metric_texts.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from rlcore import Json


def described(names: Iterable[str]) -> Json:
    """Name → `[text, page]` of each page that describes it, by the key that says most of the name."""
    return {name: found for name in sorted(set(names)) if (found := _texts(name))}


def _texts(name: str) -> list[list[str]]:
    matching = [(length, text, page) for key, length, text, page in _known() if key.fullmatch(name)]
    most = max((length for length, _, _ in matching), default=0)
    return [[text, page] for length, text, page in matching if length == most]


@cache
def _known() -> list[tuple[re.Pattern[str], int, str, str]]:
    """Pattern of names, what it says of them in characters, text and page.

    A placeholder, as in `eval/<set>/score`, stands for anything without a slash.
    """
    file = resources.files("rlcore_view") / "metrics.json"
    known = []
    for key, text, page in json.loads(file.read_text("utf-8")):
        parts = re.split(r"<[^>]+>", key)
        pattern = re.compile("[^/]+".join(map(re.escape, parts)))
        known.append((pattern, sum(map(len, parts)), text, page))
    return known
