"""Whether docs/metrics.md, or the page of the part that it refers to, explains a metric."""

import re
from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
OF_PARTS = ("train/<name>", "critic/<name>")
"""What a loss or a correction reports: its own page explains each by its name."""


def undocumented(keys: Iterable[str]) -> list[str]:
    """Those of `keys` that no page explains."""
    page = (DOCS / "metrics.md").read_text()
    names = set(re.findall(r"`([\w/<>@]+)`", page)) - set(OF_PARTS)
    patterns = [re.compile(re.sub(r"<\w+>", "[^/]+", name)) for name in names]
    unknown = [key for key in keys if not any(pattern.fullmatch(key) for pattern in patterns)]
    pages = "".join(path.read_text() for path in DOCS.rglob("*.md"))
    return [key for key in unknown if not _is_of_a_part(key, pages)]


def _is_of_a_part(key: str, pages: str) -> bool:
    role, _, name = key.partition("/")
    return f"{role}/<name>" in OF_PARTS and (f"`{key}`" in pages or f"`{name}`" in pages)
