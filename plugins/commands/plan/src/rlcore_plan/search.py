"""Layouts of a model on a number of GPUs: which fit, and why others do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlcore import ConfigError, ModelFacts
from rlcore_plan.layout import Layout, objections
from rlcore_plan.memory import BYTES, Memory, Workload, largest
from rlcore_plan.weights import parameters

GB = 10**9
SIZES = ("tensor", "pipeline", "context", "expert")
FLAGS = {"tensor": "--tp", "pipeline": "--pp", "context": "--cp", "expert": "--ep"}
MARGIN = 0.1
"""Share of a GPU that is left to CUDA, NCCL and fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`gpus` in all, `per_node` in a node, of `memory` bytes each."""

    gpus: int
    memory: int
    per_node: int = 8

    @property
    def usable(self) -> int:
        """Bytes of a GPU that are planned with."""
        return int(self.memory * (1 - MARGIN))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with the memory of its fullest rank, or with why it is none."""

    layout: Layout
    memory: Memory | None
    reason: str

    @property
    def fits(self) -> bool:
        return not self.reason


def judge(facts: ModelFacts, layout: Layout, work: Workload, machines: Machines) -> Candidate:
    """Whether `layout` can be, and fits."""
    for objection in objections(facts, layout):
        return Candidate(layout=layout, memory=None, reason=objection)
    memory = largest(facts, layout, work)
    reason = "" if memory.total <= machines.usable else _too_much(memory, machines)
    return Candidate(layout=layout, memory=memory, reason=reason)


def search(
    facts: ModelFacts, machines: Machines, work: Workload, fixed: Mapping[str, int], recompute: bool | None
) -> list[Candidate]:
    """Every layout with the sizes in `fixed`, the best first: what fits, and is the least divided.

    `recompute` None: only where a layout does not fit without it. ConfigError for a size that cannot be.
    """
    _check(facts, machines, fixed)
    found = []
    for layout in _layouts(facts, machines, fixed):
        candidate = judge(facts, replace(layout, recompute=bool(recompute)), work, machines)
        if recompute is None and candidate.memory is not None and not candidate.fits:
            candidate = judge(facts, replace(layout, recompute=True), work, machines)
        found.append(candidate)
    return sorted(found, key=_rank)


def _check(facts: ModelFacts, machines: Machines, fixed: Mapping[str, int]) -> None:
    """Refuse a size that is given and that no other size could mend."""
    for name, size in fixed.items():
        if size > machines.gpus:
            raise ConfigError(f"{FLAGS[name]}: found {size}, expected at most --gpus ({machines.gpus}).")
        # a size alone, with GPUs enough: what is left to object is the model's
        alone = _layout(size, {name: size})
        for objection in objections(facts, alone):
            raise ConfigError(f"{FLAGS[name]}: {objection}.")


def _layouts(facts: ModelFacts, machines: Machines, fixed: Mapping[str, int]) -> Iterator[Layout]:
    tensors = _powers(min(machines.per_node, facts.heads))
    pipelines = [size for size in range(1, facts.layers + 1) if facts.layers % size == 0]
    count = facts.experts.count if facts.experts else 1
    choices = {
        "tensor": tensors,
        "pipeline": pipelines,
        "context": [1],
        "expert": [size for size in _powers(count) if count % size == 0],
    }
    for sizes in itertools.product(*([fixed[name]] if name in fixed else choices[name] for name in SIZES)):
        layout = _layout(machines.gpus, dict(zip(SIZES, sizes, strict=True)))
        if layout.replica <= machines.gpus and layout.expert * layout.pipeline <= machines.gpus:
            yield replace(layout, sequence=layout.tensor > 1)


def _layout(world: int, sizes: Mapping[str, Any]) -> Layout:
    return Layout(world=world, **sizes)


def _powers(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]


def _too_much(memory: Memory, machines: Machines) -> str:
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations + memory.workspace,
    }
    most = max(parts, key=lambda name: parts[name])
    need, have = memory.total / GB, machines.usable / GB
    return f"needs {need:.1f} GB of {have:.1f} GB, {parts[most] / GB:.1f} GB of it for {most}"


def _rank(candidate: Candidate) -> tuple[int, ...]:
    """Those that fit, without recomputation, least divided; then those that nearly fit; then the others."""
    layout, memory = candidate.layout, candidate.memory
    if memory is None:
        return (2, layout.replica, layout.expert)
    if not candidate.fits:
        return (1, memory.total)
    pieces = layout.replica * layout.expert
    return (0, int(layout.recompute), pieces, layout.pipeline, layout.tensor, memory.total)


def publication_bytes(facts: ModelFacts, work: Workload) -> int:
    """Bytes that reach an engine with each publication: every weight once."""
    return parameters(facts) * BYTES[work.dtype]


def cache_bytes(facts: ModelFacts, dtype: str) -> int:
    """Bytes of an engine's KV cache for one token, on all its GPUs together."""
    return facts.cache_values * BYTES[dtype]
