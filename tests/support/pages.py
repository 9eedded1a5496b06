"""The documentation's pages, their blocks of code, and the commands in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
READMES = ("[cemst]*/README.md", "examples/*/README.md", "plugins/*/*/README.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
PAGES += [page for where in READMES for page in sorted(ROOT.glob(where))]

MEASURED = "benchmarks.md"
"""Its tables name what was measured in words of their own."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?rlcore (\w.*)")
_REMARK = re.compile(r"\s+# .*$|^# .*$")
_FILE = re.compile(r"# ([\w/-]+\.py)\b(?:: (rlcore .*))?")


@dataclass(frozen=True)
class Block:
    """A fenced block of `page`. `language`: what stands behind the fence, "" where nothing does."""

    page: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that a block of Python begins with, as in `# reward.py`; "" where there is none."""
        match = _FILE.match(self.text)
        return match[1] if match and self.language == "python" else ""

    @property
    def is_of_package(self) -> bool:
        """Whether the file lies in a package of the reader's own, which `rlcore new` makes first."""
        return self.file.startswith("rlcore-")


def fences(page: Path) -> list[Block]:
    """All blocks of `page`."""
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, language, text) for language, text in _FENCE.findall(page.read_text())]


def blocks(*languages: str) -> list[Block]:
    """Those of `languages`, page by page."""
    return [block for page in PAGES for block in fences(page) if block.language in languages]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """What stands between backticks on the page, its blocks aside."""
    return _INLINE.findall(prose(page))


def lines(block: Block) -> list[str]:
    """The commands of a block of the shell, whole and without their remarks."""
    whole = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    return [line for one in whole if (line := _REMARK.sub("", one).strip())]


def spoken() -> Iterator[tuple[str, str]]:
    """(page, arguments) of each `rlcore …` outside of blocks of the shell, each once: whole between
    backticks, or behind the name of the file that a block of Python is.
    """
    files = [(block.page, _FILE.match(block.text)) for block in blocks("python")]
    texts = [(page, match[2]) for page, match in files if match and match[2]]
    texts += [
        (page.relative_to(ROOT).as_posix(), one)
        for page in PAGES
        if page.name != MEASURED
        for one in inline(page)
    ]
    found = ((page, match[1].strip()) for page, text in texts if (match := _COMMAND.fullmatch(text)))
    return iter(dict.fromkeys(found))


def languages(page: Path) -> set[str]:
    """Those of the page's blocks."""
    return {language for language, _ in _FENCE.findall(page.read_text())}
