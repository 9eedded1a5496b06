"""Print the table of docs/models.md: how far each bundled bridge is from transformers and from the engine.

    python scripts/bridge_gaps.py        # a few minutes; fp32 on the CPU

Of each conformance suite in plugins/models/*/tests: the largest differences over its whole grid of configs.
"""

from __future__ import annotations

import runpy
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rlcore.testing.bridges import RANKS, BridgeConformance, Models, sample
from rlcore.testing.grid import pairwise
from rlcore.testing.ranks import run_ranks

ROOT = Path(__file__).parents[1]
COLUMNS = ("configs", "logits", "std of logits", "gradients", "bf16, ratio", "`local`", "layouts")


def main() -> None:
    """One row a suite."""
    warnings.simplefilter("ignore")  # megatron's, of settings that rlcore chose
    print("| suite | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " --- |" * len(COLUMNS))
    for suite in _suites():
        with tempfile.TemporaryDirectory() as folder:
            print(
                f"| {suite.__name__.removeprefix('Test')} | {' | '.join(_row(suite, Path(folder)))} |",
                flush=True,
            )


def _suites() -> Iterator[type[BridgeConformance]]:
    for file in sorted(ROOT.glob("plugins/models/*/tests/test_*.py")):
        for found in runpy.run_path(str(file)).values():
            if (
                isinstance(found, type)
                and issubclass(found, BridgeConformance)
                and found is not BridgeConformance
            ):
                yield found


def _row(suite: type[BridgeConformance], folder: Path) -> Iterator[str]:
    (folder / "grid").mkdir()
    (folder / "layouts").mkdir()
    grid = Models(folder / "grid", {name: suite.config(**fields) for name, fields in pairwise(suite.axes)})
    alone = suite.measure(grid, [{}], 1)[0]
    references = grid.references
    yield str(len(references))
    yield f"{max(_apart(x, references[n].logits) for n in alone for x in alone[n]['logits']):.1e}"
    yield f"{min(float(one.logits.std()) for one in references.values()):.1f}"
    yield f"{max(_gradients(alone[n]['gradients'], references[n].gradients) for n in alone):.1e}"
    half = run_ranks(f"{RANKS}:half_logits", 1, suite.bridge, grid.root, grid.inputs)[0]
    ratios = (_error(half[n], x.logits) / _error(x.half, x.logits) for n, x in references.items())
    yield f"{max(ratios):.2f}"
    sampled = {name: sample(grid.root / name, one.ids, one.mask) for name, one in references.items()}
    batches = {name: batch for name, (batch, _) in sampled.items()}
    found = run_ranks(f"{RANKS}:log_probs", 1, suite.bridge, grid.root, batches)[0]
    yield f"{max(_apart(found[name], expected) for name, (_, expected) in sampled.items()):.1e}"
    yield f"{_layouts(suite, folder / 'layouts'):.1e}"


def _layouts(suite: type[BridgeConformance], folder: Path) -> float:
    """Largest difference of a logit to one rank's, over all layouts, relative to the largest logit."""
    models = Models(folder, {name: suite.config(**fields) for name, fields in suite.layout_models.items()})
    alone = suite.measure(models, [{}], 1)[0]
    return max(
        _apart(x, y) / float(y.abs().max())
        for ranks, fields in suite.layouts.values()
        for name, found in suite.measure(models, [fields], ranks)[0].items()
        for x, y in zip(found["logits"], alone[name]["logits"], strict=True)
    )


def _gradients(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Of both passes together, relative to each tensor's largest value and one."""
    return max(_apart(found[k], 2 * e) / (1 + float((2 * e).abs().max())) for k, e in expected.items())


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max())


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).square().mean().sqrt())


if __name__ == "__main__":
    main()
