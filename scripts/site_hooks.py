"""Hooks of the documentation's site (`make site`): docs/README.md is its home page and its menu.

Pages link to files outside docs/ too, as a code host shows them. The site has such files under `project/`: a
page as it is, source code as a page that shows it, anything else as a file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]+)?\)")
HOME = "README.md"
DOCS, PROJECT = "docs/", "project/"
LANGUAGES = {".py": "python", ".json": "json", "": "text"}
"""Suffix of a file that becomes a page of code → its language."""


def on_config(config: Any) -> Any:
    """The menu: a section for each heading of the home page, with the pages that it links to."""
    text = (Path(config.docs_dir) / HOME).read_text(encoding="utf-8")
    first, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    config.nav = [{"Home": HOME}, *_entries(first)]
    for section in sections:
        title, _, body = section.partition("\n")
        config.nav.append({title: _entries(body)})
    return config


def _entries(text: str) -> list[dict[str, str]]:
    links = [(link[1], _target(link[2], DOCS + HOME)) for link in LINK.finditer(text)]
    return [{name: _uri(target)} for name, target in links if target.endswith(".md")]


def on_files(files: Any, *, config: Any) -> Any:
    """Add what pages link to outside docs/; such a page may have links of its own."""
    root = Path(config.docs_dir).parent
    waiting = [DOCS + file.src_uri for file in files.documentation_pages()]
    while waiting:
        page = waiting.pop()
        for link in LINK.finditer((root / page).read_text(encoding="utf-8")):
            target = _target(link[2], page)
            uri = _uri(target)
            if not uri.startswith(PROJECT) or uri in files.src_uris or not (root / target).is_file():
                continue
            files.append(_file(root / target, uri, config))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def _file(path: Path, uri: str, config: Any) -> File:
    if path.suffix not in LANGUAGES:
        return File.generated(config, uri, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
    code = f"~~~~~~{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}~~~~~~\n"
    text = f"---\nsearch: {{exclude: true}}\n---\n\n# {path.name}\n\n{code}"
    return File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Links from docs/ to other folders, and back, lead to where the site has the file."""
    uri = page.file.src_uri
    place = uri.removeprefix(PROJECT) if uri.startswith(PROJECT) else DOCS + uri

    def moved(link: re.Match[str]) -> str:
        found = _uri(_target(link[2], place))
        if found not in files.src_uris:
            return link[0]
        return f"[{link[1]}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{link[3] or ''})"

    return LINK.sub(moved, markdown)


def _target(link: str, page: str) -> str:
    """Where the link of a page leads. Both paths are from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _uri(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return PROJECT + path + (".md" if posixpath.splitext(path)[1] in LANGUAGES else "")
