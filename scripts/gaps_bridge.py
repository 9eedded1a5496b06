"""How far each bundled bridge is from transformers and from the `local` engine, in fp32 on the CPU.

Of the conformance suites in plugins/models/*/tests: the largest differences over the whole grid of configs.
"""

from __future__ import annotations

import runpy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rlcore.testing.bridges import RANKS, BridgeConformance, Models, sample, typical
from rlcore.testing.grid import pairwise
from rlcore.testing.ranks import run_ranks

ROOT = Path(__file__).parents[1]


def suites() -> Iterator[type[BridgeConformance]]:
    """Every suite of a bundled bridge."""
    for file in sorted(ROOT.glob("plugins/models/*/tests/test_*.py")):
        for found in runpy.run_path(str(file)).values():
            if (
                isinstance(found, type)
                and issubclass(found, BridgeConformance)
                and found is not BridgeConformance
            ):
                yield found


def family_of(suite: type[BridgeConformance]) -> str:
    """As config.json's model_type has it."""
    return str(suite.config_class.model_type)


def measured(suite: type[BridgeConformance]) -> dict[str, str]:
    """Column → what stands there, in the row of the suite's family."""
    with tempfile.TemporaryDirectory() as folder:
        return dict(_cells(suite, Path(folder)))


def _cells(suite: type[BridgeConformance], folder: Path) -> Iterator[tuple[str, str]]:
    (folder / "grid").mkdir()
    (folder / "layouts").mkdir()
    grid = Models(folder / "grid", {name: suite.config(**fields) for name, fields in pairwise(suite.axes)})
    alone = suite.measure(grid, [{}], 1)[0]
    references = grid.references
    yield "configs", str(len(references))
    yield "logits", f"{max(_apart(x, references[n].logits) for n in alone for x in alone[n]['logits']):.1e}"
    worst = max(_gradients(alone[n]["gradients"], references[n].gradients) for n in alone)
    yield "gradients", f"{worst:.1e}"
    half = run_ranks(f"{RANKS}:half_logits", 1, suite.bridge, grid.root, grid.inputs)[0]
    ratios = (typical(half[n] - x.logits) / typical(x.half - x.logits) for n, x in references.items())
    yield "bf16", f"{max(ratios):.2f}"
    sampled = {name: sample(grid.root / name, one.ids, one.mask) for name, one in references.items()}
    batches = {name: batch for name, (batch, _) in sampled.items()}
    found = run_ranks(f"{RANKS}:log_probs", 1, suite.bridge, grid.root, batches)[0]
    yield "`local`", f"{max(_apart(found[name], expected) for name, (_, expected) in sampled.items()):.1e}"
    yield "layouts", f"{_layouts(suite, folder / 'layouts'):.1e}"


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
