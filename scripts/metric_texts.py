"""Write what `rlcore view` says of each metric, from the tables and the Metrics sections of docs/."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILE = ROOT / "plugins" / "commands" / "view" / "src" / "rlcore_view" / "metrics.json"
KEY = r"`((?:step|weight_version)|(?:critic|engine|eval|generator|perf|reward|rollout|time|train)/[^`*]+)`"
KEYS = re.compile(rf"{KEY}(?:, {KEY})*")
SENTENCE = re.compile(
    rf"(?P<keys>{KEYS.pattern}) (?P<text>[^`].*?)(?= · |; |\. |\.$|, `(?:critic|train)/|: `|$)"
)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def texts() -> list[tuple[str, str, str]]:
    """Key, text and page. docs/metrics.md stands first, and what it says no other page says again."""
    known = _said(DOCS / "metrics.md")
    found = [(key, _plain(text), "metrics.md") for key, text in known.items()]
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        found += [(key, _plain(text), name) for key, text in _said(page).items() if key not in known]
    return found


def _said(page: Path) -> dict[str, str]:
    """Key → what the page says of it first. NAME stands for that of a correction."""
    found: dict[str, str] = {}
    for key, text in _sentences(page.read_text(encoding="utf-8")):
        found.setdefault(key.replace("NAME", "<name>"), text)
    return found


def _sentences(page: str) -> Iterator[tuple[str, str]]:
    """The rows of tables that begin with keys, and the sentences of a section Metrics."""
    for first, text in re.findall(r"^\| (`.*?) \| (.*) \|$", page, re.MULTILINE):
        if KEYS.fullmatch(first):
            yield from ((key, text) for key in re.findall(KEY, first))
    for section in re.findall(r"^## Metrics\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        prose = " ".join(re.sub(r"^\|.*$", "", section, flags=re.MULTILINE).split())
        for match in SENTENCE.finditer(prose):
            yield from ((key, match["text"]) for key in re.findall(KEY, match["keys"]))


def _plain(text: str) -> str:
    return LINK.sub(r"\1", text).replace("\\|", "|").replace("`", "").strip().rstrip(".")


def written() -> str:
    """The file's content."""
    lines = [json.dumps(one, ensure_ascii=False) for one in texts()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
