"""How far each layout of each bundled bridge, and prompts computed once, are from one rank that computes all.

Of the conformance suites' `layouts` and `layout_models`, in fp32 on the CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gaps_bridge import apart, gradients

from rlcore_megatron.testing.bridges import RANKS, BridgeConformance, Models
from rlcore_testing.ranks import run_ranks

SHARED = "shared prompts"
COLUMNS = ("layouts: log-probs", "layouts: gradients")
Gaps = tuple[float, float]


def measured(suite: type[BridgeConformance]) -> dict[str, dict[str, float]]:
    """Column → largest difference of each layout: of a log-prob, and relative of a gradient."""
    with tempfile.TemporaryDirectory() as folder:
        rows = dict(_rows(suite, Path(folder)))
    return {column: {name: gaps[n] for name, gaps in rows.items()} for n, column in enumerate(COLUMNS)}


def _rows(suite: type[BridgeConformance], folder: Path) -> Iterator[tuple[str, Gaps]]:
    models = Models(folder, {name: suite.config(**fields) for name, fields in suite.layout_models.items()})
    alone = suite.measure(models, [{}], 1)[0]
    for layout, (ranks, fields) in suite.layouts.items():
        found = suite.measure(models, [fields], ranks)[0]
        yield layout, _worst(_gaps(found[name], alone[name]) for name in alone)
    pairs = run_ranks(f"{RANKS}:shared_prompts", 1, suite.bridge, models.root, list(alone))[0].values()
    yield SHARED, _worst((apart(one[0], each[0]), gradients(one[1], each[1])) for one, each in pairs)


def _gaps(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Gaps:
    pairs = zip(found["logits"], expected["logits"], strict=True)
    log_probs = max(apart(x.log_softmax(-1), y.log_softmax(-1)) for x, y in pairs)
    return log_probs, gradients(found["gradients"], expected["gradients"])


def _worst(gaps: Iterator[Gaps]) -> Gaps:
    log_probs, of_gradients = zip(*gaps, strict=True)
    return max(log_probs), max(of_gradients)
