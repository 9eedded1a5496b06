"""Hooks of the documentation's site (`make site`): docs/README.md is its home page and its menu."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
MENU_LINK = re.compile(r"\[([^\]]+)\]\(((?!\.\./)[^)#\s]+\.md)\)")
HOME = "README.md"


def on_config(config: Any) -> Any:
    """The menu: a section for each heading of the home page, with the pages that it links to."""
    text = (Path(config.docs_dir) / HOME).read_text(encoding="utf-8")
    menu: list[dict[str, Any]] = [{"Home": HOME}]
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        menu.append({title: [{name: page} for name, page in MENU_LINK.findall(body)]})
    config.nav = menu
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links that leave docs/ lead nowhere on the site: their text stays."""
    folder = PurePosixPath(page.file.src_uri).parent
    return LINK.sub(lambda link: _kept(link, folder), markdown)


def _kept(link: re.Match[str], folder: PurePosixPath) -> str:
    text, target = link.groups()
    if "://" in target or target.startswith("#"):
        return link[0]
    depth = 0
    for part in (folder / target.partition("#")[0]).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return text
    return link[0]
