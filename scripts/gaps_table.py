"""The table of docs/models.md from what scripts/gaps.py has measured, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
RESULTS = ROOT / "benchmarks" / "results" / "gaps.json"
BEGIN, END = "<!-- scripts/gaps.py -->\n", "<!-- end -->\n"


def _largest(values: Mapping[str, float]) -> str:
    return f"{max(values.values()):.1e}"


def _gap(values: Mapping[str, float]) -> str:
    return f"{values['mean']:.4f} ({values['k3']:.1e})"


COLUMNS: Mapping[str, Callable[[Any], str]] = {
    "configs": lambda names: str(len(names)),
    "logits": _largest,
    "gradients": _largest,
    "bf16": lambda values: f"{max(values.values()):.2f}",
    "`local`": _largest,
    "layouts": _largest,
    "SGLang": _largest,
    "bf16 engine": _gap,
    "replayed": _gap,
}
"""Column → its cell, of what was measured for it."""


def read() -> dict[str, Any]:
    """`families`: family → column → what was measured; `measured`: when, and with what libraries."""
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    return results


def written(page: str, results: Mapping[str, Any]) -> str:
    """`page` with the table of `results` between its marks."""
    before, rest = page.split(BEGIN)
    lines = [f"| family | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
    for family, found in results["families"].items():
        cells = (cell(found[name]) if name in found else "" for name, cell in COLUMNS.items())
        lines.append(f"| `{family}` | {' | '.join(cells)} |")
    return before + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1]
