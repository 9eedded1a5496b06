"""Writes docs/reference/names.md: the public names that no other page of the reference shows.

python scripts/public_names_page.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGE = REFERENCE / "names.md"
PACKAGES = {"rlcore": ROOT / "core/src/rlcore", "rlcore_toolkit": ROOT / "toolkit/src/rlcore_toolkit"}
HEAD = """# The other public names

Here is what `rlcore` and `rlcore_toolkit` offer beside the other pages of the reference. Import it from the
package itself: `from rlcore import replace_file`. `python scripts/public_names_page.py` makes this page.
"""
OF_PAGES = ("TRACE_FILES",)
"""docs/watching.md has it: mkdocstrings does not see a name that is assigned beside others."""
MODULE = re.compile(r"^from \.([\w.]+) import \((.*?)\)", re.DOTALL | re.MULTILINE)
OF_CLI = re.compile(r"^(\w+) = _cli\.\w+$", re.MULTILINE)
"""Names of rlcore that rlcore-cli brings."""


def page() -> str:
    """The page as it should be."""
    sections = (f"\n## {package}\n\n{''.join(lines(package))}".rstrip() + "\n" for package in PACKAGES)
    return HEAD + "".join(sections)


def lines(package: str) -> Iterator[str]:
    """A directive of mkdocstrings for each name."""
    shown = whole_modules()
    stub = (PACKAGES[package] / "__init__.pyi").read_text()
    for module, names in MODULE.findall(stub):
        if f"{package}.{module}" not in shown:
            for name in re.findall(r"(\w+) as", names):
                if name not in OF_PAGES:
                    yield f"::: {package}.{module}.{name}\n\n"
    yield from (f"::: rlcore_cli.from_python.{name}\n\n" for name in OF_CLI.findall(stub))


def whole_modules() -> set[str]:
    """Modules that other pages show whole."""
    pages = [file.read_text() for file in REFERENCE.glob("*.md") if file != PAGE]
    return set(re.findall(r"^::: ([\w.]+)", "\n".join(pages), re.MULTILINE))


if __name__ == "__main__":
    PAGE.write_text(page())
