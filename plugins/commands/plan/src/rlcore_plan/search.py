"""Layouts of a model on a number of GPUs: which fit, and why others do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlcore import ConfigError, ModelFacts
from rlcore_plan.layout import Layout, Recompute, last_stage, objections
from rlcore_plan.memory import BYTES, Memory
from rlcore_plan.phases import Machines, Needs, Phase, Run, needs
from rlcore_plan.units import GB

FLAGS = {
    **{"tensor": "--tp", "pipeline": "--pp", "context": "--cp"},
    **{"expert": "--ep", "expert_tensor": "--etp"},
}
SIZES = tuple(FLAGS)
MOST_STAGES = 32
"""Of a pipeline whose last stage has fewer layers."""
MOST_CONTEXT = 8
MOST_GPUS, WHOLE_NODES = 4096, 4
"""Of a search for more GPUs."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with what it needs, or with why it is none. `run`: the one that it was judged for."""

    layout: Layout
    run: Run
    needs: Needs | None
    reason: str

    @property
    def fits(self) -> bool:
        return not self.reason

    @property
    def memory(self) -> Memory | None:
        """Of the fullest rank."""
        return self.needs.memory if self.needs else None


def judge(facts: ModelFacts, layout: Layout, run: Run, machines: Machines) -> Candidate:
    """Whether `layout` can be, and fits."""
    for objection in objections(facts, layout):
        return Candidate(layout=layout, run=run, needs=None, reason=objection)
    needed = needs(facts, layout, run, machines)
    return Candidate(layout=layout, run=run, needs=needed, reason=_too_much(needed, machines))


def search(
    facts: ModelFacts, machines: Machines, run: Run, fixed: Mapping[str, int], recompute: bool | None
) -> list[Candidate]:
    """Every layout with the sizes in `fixed`, the best first: what fits, and is the least divided.

    `recompute` None: only where a layout does not fit without it, and then the optimizer's states in host
    memory only where it does not fit with it. ConfigError for a size that cannot be.
    """
    _check(facts, machines, fixed)
    candidates = []
    for layout in _layouts(facts, machines, fixed):
        for changed, way in _ways(layout, run, recompute):
            candidate = judge(facts, changed, way, machines)
            if candidate.fits or candidate.needs is None:
                break
        candidates.append(candidate)
    return sorted(candidates, key=_rank)


def on_more_gpus(
    facts: ModelFacts, machines: Machines, run: Run, fixed: Mapping[str, int], recompute: bool | None
) -> Candidate | None:
    """The best layout on the fewest GPUs that hold one; None: `MOST_GPUS` do not either.

    It tries whole nodes up to `WHOLE_NODES` of them, and powers of 2.
    """
    nodes = range(machines.per_node, (WHOLE_NODES + 1) * machines.per_node, machines.per_node)
    for count in sorted({*_powers(MOST_GPUS), *nodes}):
        if count > machines.gpus:
            best = search(facts, replace(machines, gpus=count), run, fixed, recompute)[:1]
            if best and best[0].fits:
                return best[0]
    return None


def apart(candidate: Candidate) -> list[str]:
    """What does not fit whatever the policy's layout: `to train the critic it needs …`."""
    phases = candidate.needs.phases if candidate.needs else ()
    return [f"to {phase.name} it {_needed(phase)}" for phase in phases if phase.is_apart and not phase.fits]


def nearest(facts: ModelFacts, machines: Machines, run: Run, wanted: Layout) -> Candidate | None:
    """What fits and differs least from `wanted`: larger engines, or another layout. None: nothing does."""
    for larger in with_larger_engines(facts, run, machines.gpus):
        same = judge(facts, wanted, larger, machines)
        if same.fits:
            return same
    if apart(judge(facts, wanted, run, machines)):
        return None
    contexts = [size for size in _powers(min(MOST_CONTEXT, machines.gpus)) if size >= wanted.context]
    candidates = [
        candidate
        for context in contexts
        for candidate in search(facts, machines, run, {"context": context}, None)
        if candidate.fits
    ]
    return min(
        candidates, key=lambda candidate: (_distance(candidate, wanted, run), _rank(candidate)), default=None
    )


def with_larger_engines(facts: ModelFacts, run: Run, ranks: int) -> Iterator[Run]:
    """`run` with a half, a quarter, … of its engines, which have the GPUs of all; not of engine groups.

    Beside the trainer their GPUs divide its `ranks`.
    """
    if len(run.engines) != 1:
        return
    (engines,) = run.engines
    for factor in _powers(engines.count)[1:]:
        larger = engines.joined(factor)
        is_placed = engines.count % factor == 0 and not (run.is_colocated and ranks % larger.gpus)
        if is_placed and facts.heads % (larger.tensor // larger.parts) == 0:
            yield replace(run, engines=(larger,))


def _distance(candidate: Candidate, wanted: Layout, run: Run) -> int:
    """Settings that differ."""
    names = (*SIZES, "stages", "virtual", "recompute")
    changed = sum(bool(getattr(candidate.layout, name) != getattr(wanted, name)) for name in names)
    return changed + (candidate.run != run)


def _ways(layout: Layout, run: Run, recompute: bool | None) -> Iterator[tuple[Layout, Run]]:
    yield replace(layout, recompute=Recompute() if recompute else None), run
    if recompute is None:
        whole = replace(layout, recompute=Recompute())
        yield whole, run
        if run.optimizer.is_sharded and not run.optimizer.on_host:
            yield whole, replace(run, optimizer=replace(run.optimizer, on_host=1.0))


def _check(facts: ModelFacts, machines: Machines, fixed: Mapping[str, int]) -> None:
    """Refuse a size that is given and that no other size could mend."""
    for name, size in fixed.items():
        if size > machines.gpus:
            raise ConfigError(f"{FLAGS[name]}: found {size}, expected at most --gpus ({machines.gpus}).")
        # a size alone, with GPUs enough: what is left to object is the model's
        alone = _layout(facts, size, {name: size})
        for objection in objections(facts, alone):
            raise ConfigError(f"{FLAGS[name]}: {objection}.")


def _layouts(facts: ModelFacts, machines: Machines, fixed: Mapping[str, int]) -> Iterator[Layout]:
    count = facts.experts.count if facts.experts else 1
    choices: Mapping[str, Sequence[int]] = {
        "tensor": _powers(min(machines.per_node, facts.heads)),
        "pipeline": _pipelines(facts.layers),
        "context": [1],
        "expert": [size for size in _powers(count) if count % size == 0],
        "expert_tensor": [1],
    }
    for sizes in itertools.product(*([fixed[name]] if name in fixed else choices[name] for name in SIZES)):
        layout = _layout(facts, machines.gpus, dict(zip(SIZES, sizes, strict=True)))
        if max(layout.replica, _pieces_of_experts(layout)) <= machines.gpus:
            yield replace(layout, sequence=layout.tensor > 1)


def _pieces_of_experts(layout: Layout) -> int:
    """Ranks that hold all experts once."""
    return layout.expert * layout.expert_tensor * layout.pipeline


def _pipelines(layers: int) -> list[int]:
    """Sizes that divide the layers, and powers of 2 with a smaller last stage."""
    uneven = {size for size in _powers(MOST_STAGES) if last_stage(layers, size)}
    return sorted({size for size in range(1, layers + 1) if layers % size == 0} | uneven)


def _layout(facts: ModelFacts, world: int, sizes: Mapping[str, Any]) -> Layout:
    return Layout(world=world, stages=last_stage(facts.layers, sizes.get("pipeline", 1)), **sizes)


def _powers(limit: int) -> list[int]:
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]


def _too_much(needed: Needs, machines: Machines) -> str:
    """Which phase does not fit, and what takes most in it; empty where all do."""
    over = [phase for phase in needed.phases if not phase.fits]
    if over:
        return _sentence(max(over, key=lambda phase: phase.total - phase.limit))
    if machines.host is not None and needed.host > machines.host:
        return f"needs {needed.host / GB:.0f} GB of host memory of {machines.host / GB:.0f} GB"
    return ""


def _sentence(phase: Phase) -> str:
    return _needed(phase, "" if phase.name == "train" else f" to {phase.name}")


def _needed(phase: Phase, when: str = "") -> str:
    most = max(phase.items, key=lambda name: phase.items[name])
    return (
        f"needs {phase.total / GB:.1f} GB of {phase.limit / GB:.1f} GB{when}, "
        f"{phase.items[most] / GB:.1f} GB of it for {most}"
    )


def _rank(candidate: Candidate) -> tuple[int, ...]:
    """Those that fit, without recomputation, least divided; then those that nearly fit; then the others."""
    layout, memory = candidate.layout, candidate.memory
    if memory is None:
        return (2, layout.replica, layout.expert * layout.expert_tensor)
    if not candidate.fits:
        return (1, memory.total)
    pieces = layout.replica * layout.expert * layout.expert_tensor
    eased = int(layout.recompute is not None) + int(bool(candidate.run.optimizer.on_host))
    return (0, eased, pieces, len(set(layout.stages)), layout.pipeline, layout.tensor, memory.total)


def cache_bytes(facts: ModelFacts, dtype: str) -> int:
    """Bytes of an engine's KV cache for one token, on all its GPUs together."""
    return facts.cache_values * BYTES[dtype]
