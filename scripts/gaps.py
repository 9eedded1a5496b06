"""Measure the table of docs/models.md, family by family, and write what was measured into it.

    python scripts/gaps.py [--sglang .venv-sglang/bin/python] [--only bridge|replay|sglang] [FAMILY …]

fp32 on the CPU, a few minutes for each family; what is not measured this time stays as it is in the table.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gaps_bridge
import gaps_replay
import gaps_sglang

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- scripts/gaps.py -->\n", "<!-- end -->\n"
COLUMNS = (
    *("configs", "logits", "gradients", "bf16", "`local`", "layouts", "SGLang"),
    *gaps_replay.COLUMNS,
)

Table = dict[str, dict[str, str]]
"""Family → column → cell."""


def main() -> None:
    """One row a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", default="", help="the Python of an environment with SGLang")
    parser.add_argument("--only", choices=("bridge", "replay", "sglang"), help="one kind of measurement")
    parser.add_argument("family", nargs="*", help="these alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # megatron's, of settings that rlcore chose
    for family, measure in _wanted(args.only, args.family, args.sglang):
        cells = measure()
        print(family, cells, flush=True)
        table = read(PAGE.read_text())
        table.setdefault(family, {}).update(cells)
        PAGE.write_text(written(PAGE.read_text(), table))


Measure = Callable[[], dict[str, str]]


def _wanted(only: str | None, families: list[str], sglang: str) -> Iterator[tuple[str, Measure]]:
    def asked(kind: str, family: str) -> bool:
        return only in (None, kind) and (not families or family in families)

    for suite in gaps_bridge.suites():
        family = gaps_bridge.family_of(suite)
        if asked("bridge", family):
            yield family, partial(gaps_bridge.measured, suite)
    for family in gaps_replay.CONFIGS:
        if asked("replay", family):
            yield family, partial(gaps_replay.measured, family)
    for family in gaps_sglang.FAMILIES if sglang else ():
        if asked("sglang", family):
            yield family, partial(gaps_sglang.measured, family, sglang)


def read(page: str) -> Table:
    """The table between the page's marks."""
    lines = page.split(BEGIN)[1].split(END)[0].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = rows[0][1:]
    return {row[0].strip("`"): dict(zip(names, row[1:], strict=True)) for row in rows[2:]}


def written(page: str, table: Table) -> str:
    """`page` with `table` between its marks."""
    before, rest = page.split(BEGIN)
    lines = [f"| family | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
    for family, cells in table.items():
        lines.append(f"| `{family}` | " + " | ".join(cells.get(name, "") for name in COLUMNS) + " |")
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    main()
