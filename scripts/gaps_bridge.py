"""How far each bundled bridge is from transformers and from the `local` engine, in fp32 on the CPU.

Of the conformance suites in plugins/models/*/tests: the largest differences over the whole grid of configs.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import RANKS, BridgeConformance, Models, sample, typical
from rlcore_megatron.testing.grid import pairwise
from rlcore_testing.ranks import run_ranks

ROOT = Path(__file__).parents[1]


def suites() -> Iterator[type[BridgeConformance]]:
    """Every suite of a bundled bridge."""
    sys.path.append(str(ROOT / "tests/support"))  # for the files that have the suites
    for file in sorted(ROOT.glob("plugins/models/*/tests/test_*.py")):
        for found in runpy.run_path(str(file)).values():
            if (
                isinstance(found, type)
                and issubclass(found, BridgeConformance)
                and found is not BridgeConformance
            ):
                yield found


def family_of(suite: type[BridgeConformance]) -> str:
    """The bridge's name; the two families of `qwen` by their model_type."""
    name = str(suite.bridge.name)
    return str(suite.config_class.model_type) if name == "qwen" else name


def measured(suite: type[BridgeConformance]) -> dict[str, Any]:
    """Column → largest difference of each config; `configs` are their names."""
    with tempfile.TemporaryDirectory() as folder:
        return dict(_columns(suite, Path(folder)))


def _columns(suite: type[BridgeConformance], folder: Path) -> Iterator[tuple[str, Any]]:
    grid = Models(folder, {name: suite.config(**fields) for name, fields in pairwise(suite.axes)})
    alone = suite.measure(grid, [{}], 1)[0]
    references = grid.references
    yield "configs", list(references)
    yield "logits", {n: max(apart(x, references[n].logits) for x in alone[n]["logits"]) for n in alone}
    twice = {n: {k: 2 * e for k, e in x.gradients.items()} for n, x in references.items()}  # of both passes
    yield "gradients", {n: gradients(alone[n]["gradients"], twice[n]) for n in alone}
    half = run_ranks(f"{RANKS}:packed_logits", 1, suite.bridge, grid.root, grid.inputs, "bf16")[0]
    yield "bf16", {n: typical(half[n] - x.logits) / typical(x.half - x.logits) for n, x in references.items()}
    sampled = {name: sample(answers, grid.root / name, one.ids, one.mask) for name, one in references.items()}
    batches = {name: batch for name, (batch, _) in sampled.items()}
    found = run_ranks(f"{RANKS}:log_probs", 1, suite.bridge, grid.root, batches)[0]
    yield "`local`", {name: apart(found[name], expected) for name, (_, expected) in sampled.items()}


def gradients(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor and one."""
    return max(apart(found[k], e) / (1 + float(e.abs().max())) for k, e in expected.items())


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference."""
    return float((found - expected).abs().max())
