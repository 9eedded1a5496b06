"""Hooks of the documentation's site (`make site`): the README is its home page, docs/README.md its menu.

Pages link to files outside docs/ too, as a code host shows them. The site has such files under `project/`: a
page as it is, source code as a page that shows it, anything else as a file.

The site adds what site_pages.py makes. A page of docs/ leads there by a comment behind a link or behind code,
which a code host does not show: `[Settings](source.py)<!-- settings.md -->`. A table stands for
`<!-- table: NAME -->`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import site_pages
from mkdocs.structure.files import File, InclusionLevel

MADE = re.compile(r"(?:\[([^\]]+)\]\([^)\s]+\)|(`[^`\n]+`))<!-- ([\w/.#-]+) -->")
TABLE = re.compile(r"^<!-- table: (\w+) -->$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]+)?\)")
MENU = "docs/README.md"
DOCS, PROJECT = "docs/", "project/"
OWN = {"README.md": "index.md", MENU: "contents.md"}
"""Files that have another name in the site."""
LANGUAGES = {".py": "python", ".json": "json", "": "text"}
"""Suffix of a file that becomes a page of code → its language."""


def on_config(config: Any) -> Any:
    """The menu: a section for each heading of the home page, with the pages that it links to."""
    text = _source(Path(config.docs_dir).parent / MENU)
    _, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    config.nav = [{"Home": OWN["README.md"]}, {"Contents": OWN[MENU]}]
    for section in sections:
        title, _, body = section.partition("\n")
        config.nav.append({title: _entries(body)})
    return config


def _source(path: Path) -> str:
    """The text of a page, with links to the pages that are made."""
    return _linked(path.read_text(encoding="utf-8"))


def _linked(text: str) -> str:
    return MADE.sub(lambda link: f"[{link[1] or link[2]}]({link[3]})", text)


def _entries(text: str) -> list[dict[str, str]]:
    links = [(link[1], _target(link[2], MENU)) for link in LINK.finditer(text)]
    return [{name: _uri(target)} for name, target in links if target.endswith(".md")]


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are made, and what pages link to outside docs/, which may have links of its own."""
    for uri, page in site_pages.PAGES.items():
        files.append(File.generated(config, uri, content=page()))
    root = Path(config.docs_dir).parent
    files.remove(files.get_file_from_path(MENU.removeprefix(DOCS)))
    for path, uri in OWN.items():
        files.append(File.generated(config, uri, abs_src_path=str(root / path)))
    waiting = [*OWN, *(DOCS + file.src_uri for file in files.documentation_pages() if not file.generated_by)]
    while waiting:
        page = waiting.pop()
        for link in LINK.finditer(_source(root / page)):
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
    own = next((path for path, known in OWN.items() if known == uri), None)
    place = own or (uri.removeprefix(PROJECT) if uri.startswith(PROJECT) else DOCS + uri)

    def moved(link: re.Match[str]) -> str:
        found = _uri(_target(link[2], place))
        if found not in files.src_uris:
            return link[0]
        return f"[{link[1]}]({posixpath.relpath(found, posixpath.dirname(uri) or '.')}{link[3] or ''})"

    markdown = TABLE.sub(lambda mark: site_pages.TABLES[mark[1]](), _linked(markdown))
    return LINK.sub(moved, markdown)


def _target(link: str, page: str) -> str:
    """Where the link of a page leads. Both paths are from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _uri(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in OWN:
        return OWN[path]
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return PROJECT + path + (".md" if posixpath.splitext(path)[1] in LANGUAGES else "")
