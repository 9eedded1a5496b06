"""Write the tables of docs/migrating_from_*.md: the settings of TRL, verl and prime-rl beside rlcore's."""

import re
from collections.abc import Iterable
from pathlib import Path

from rlcore_import.comparison import FRAMEWORKS, Row, tables

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(?<=<!-- )([^\n]+)(: scripts/migration_tables\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def page(file: str) -> Path:
    """The page of a framework."""
    return DOCS / f"migrating_from_{file}.md"


def written(file: str) -> str:
    """The page of a framework with its tables made anew."""
    rows, name = tables(file), FRAMEWORKS[file]

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{found[2]}{_table(name, rows[found[1]])}"

    text, count = TABLE.subn(table, page(file).read_text())
    assert count == len(rows), f"{page(file)} has {count} of {len(rows)} tables"
    return text


def _table(name: str, rows: Iterable[Row]) -> str:
    lines = [f"| {row.theirs} | {row.ours} | {row.remark} |".replace("|  |", "| |") for row in rows]
    return "\n".join(["", f"| {name} | rlcore | remark |", "| --- | --- | --- |", *lines, "", ""])


if __name__ == "__main__":
    for file in FRAMEWORKS:
        page(file).write_text(written(file))
