"""Layouts of a model on a number of GPUs: which fit, and why others do not."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rlcore import ConfigError, ModelFacts
from rlcore_megatron.plan.candidate import Candidate
from rlcore_megatron.plan.engines import Engines
from rlcore_megatron.plan.layout import Layout, Recompute, objections, uneven_stages
from rlcore_megatron.plan.phases import Run, needs
from rlcore_toolkit import ENOUGH, SLEEPS, Machines, shortage

FLAGS = {
    **{"tensor": "--tp", "pipeline": "--pp", "context": "--cp"},
    **{"expert": "--ep", "expert_tensor": "--etp"},
}
SIZES = tuple(FLAGS)
MOST_STAGES = 32
"""The most stages of a pipeline that are uneven, where they do not divide the layers."""
MOST_CONTEXT = 8
MOST_GPUS, WHOLE_NODES = 4096, 4
"""Bounds a search for more GPUs."""


BySleep = Mapping[str, Sequence[tuple[Engines, ...]]]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a search may choose beside the layout, in the order of preference.

    `recompute`: whether layers are computed again; None: where they must be, and then the optimizer's states
    may be in host memory where that is not enough. `engines`: value of `--sleep` → groups of engines; empty:
    none are planned. `staged`: likewise, engines in pipeline stages for layouts that no others fit beside.
    """

    recompute: bool | None = None
    engines: BySleep = field(default_factory=dict)
    staged: BySleep = field(default_factory=dict)


def judge(facts: ModelFacts, layout: Layout, run: Run, machines: Machines) -> Candidate:
    """Whether `layout` can be, and fits."""
    reason = next(objections(facts, layout), "")
    needed = None if reason else needs(facts, layout, run, machines)
    if needed is not None:
        reason = shortage(needed.phases, needed.host, machines)
    return Candidate(facts=facts, machines=machines, layout=layout, run=run, needs=needed, reason=reason)


def search(
    facts: ModelFacts,
    machines: Machines,
    run_of: Callable[[Layout], Run],
    fixed: Mapping[str, int],
    choices: Choices,
) -> list[Candidate]:
    """Every layout with the sizes in `fixed`, the best first: what fits, and is the least divided.

    `run_of`: the run under a layout, without engines where `choices` has some. ConfigError for a size that
    cannot be.
    """
    _check(facts, machines, fixed)
    found = [
        _chosen(facts, layout, run_of(layout), machines, choices)
        for layout in _layouts(facts, machines, fixed)
    ]
    return sorted(found, key=_rank)


def _chosen(facts: ModelFacts, layout: Layout, run: Run, machines: Machines, choices: Choices) -> Candidate:
    """`layout` with the least that makes it fit."""
    for changed, way in _ways(layout, run, choices.recompute):
        candidate = judge(facts, changed, way, machines)
        if candidate.fits and any(choices.engines.values()):
            candidate = served(facts, changed, way, machines, choices)
        if candidate.fits or candidate.needs is None:
            break
    return candidate


def served(facts: ModelFacts, layout: Layout, run: Run, machines: Machines, choices: Choices) -> Candidate:
    """`run` with the first engines that have room enough, under the least sleep that leaves it to them.

    Where none have enough, those with the most.
    """
    best = _served(facts, layout, run, machines, choices.engines)
    if best.fits or not choices.staged:
        return best
    return max(best, _served(facts, layout, run, machines, choices.staged), key=_merit)


def _served(facts: ModelFacts, layout: Layout, run: Run, machines: Machines, by_sleep: BySleep) -> Candidate:
    bests = []
    for sleep, groups in by_sleep.items():
        runs = [replace(run, sleep=sleep, engines=engines) for engines in groups]
        bests.append(max((judge(facts, layout, each, machines) for each in runs), key=_merit))
        if _merit(bests[-1])[:2] == (True, ENOUGH):
            break
    return max(bests, key=_merit)


def _merit(candidate: Candidate) -> tuple[bool, float, int]:
    """How good its engines are beside those of another candidate: the greater, the better."""
    room = min((phase.room for phase in candidate.phases), default=1.0)
    over = max((phase.total - phase.limit for phase in candidate.phases), default=0)
    return candidate.fits, min(room, ENOUGH) if candidate.fits else 0.0, -over


def on_more_gpus(
    search_on: Callable[[Machines], Sequence[Candidate]], machines: Machines
) -> Candidate | None:
    """The best layout on the fewest GPUs that hold one; None: `MOST_GPUS` do not either.

    It tries whole nodes up to `WHOLE_NODES` of them, and powers of 2.
    """
    nodes = range(machines.per_node, (WHOLE_NODES + 1) * machines.per_node, machines.per_node)
    for count in sorted({*powers(MOST_GPUS), *nodes}):
        if count > machines.gpus:
            best = search_on(replace(machines, gpus=count))[:1]
            if best and best[0].fits:
                return best[0]
    return None


def apart(candidate: Candidate) -> list[str]:
    """What does not fit whatever the policy's layout: `to train the critic it needs …`."""
    unfit = (phase for phase in candidate.phases if phase.is_apart and not phase.fits)
    return [f"to {phase.name} it {phase.needs()}" for phase in unfit]


def nearest(
    facts: ModelFacts,
    machines: Machines,
    run_of: Callable[[Layout], Run],
    wanted: Candidate,
    choices: Choices,
) -> Candidate | None:
    """What fits and differs least from `wanted`: other engines, or another layout too. None: nothing does."""
    best = wanted
    if choices.engines:
        best = served(facts, wanted.layout, wanted.run, machines, choices)
        if best.fits:
            return best
    if apart(best):
        return None
    contexts = [size for size in powers(min(MOST_CONTEXT, machines.gpus)) if size >= wanted.layout.context]
    candidates = [
        candidate
        for context in contexts
        for candidate in search(facts, machines, run_of, {"context": context}, choices)
        if candidate.fits
    ]
    return min(
        candidates, key=lambda candidate: (_distance(candidate, wanted), _rank(candidate)), default=None
    )


def _distance(candidate: Candidate, wanted: Candidate) -> int:
    """Settings that differ."""
    layout, run, wanted_run = candidate.layout, candidate.run, wanted.run
    names = (*SIZES, "stages", "virtual", "recompute")
    changed = sum(bool(getattr(layout, name) != getattr(wanted.layout, name)) for name in names)
    return changed + sum(
        (
            run.optimizer != wanted_run.optimizer,
            run.sleep != wanted_run.sleep,
            run.engines != wanted_run.engines,
        )
    )


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
        "tensor": powers(min(machines.per_node, facts.heads)),
        "pipeline": _pipelines(facts),
        "context": [1],
        "expert": [size for size in powers(count) if count % size == 0],
        "expert_tensor": [1],
    }
    for sizes in itertools.product(*([fixed[name]] if name in fixed else choices[name] for name in SIZES)):
        layout = _layout(facts, machines.gpus, dict(zip(SIZES, sizes, strict=True)))
        experts = layout.expert * layout.expert_tensor * layout.pipeline  # ranks that hold all of them once
        if max(layout.replica, experts) <= machines.gpus:
            yield replace(layout, sequence=layout.tensor > 1)


def _pipelines(facts: ModelFacts) -> list[int]:
    """Sizes that divide the layers, and powers of 2 with uneven stages."""
    uneven = {size for size in powers(MOST_STAGES) if uneven_stages(facts, size)}
    return sorted({size for size in range(1, facts.layers + 1) if facts.layers % size == 0} | uneven)


def _layout(facts: ModelFacts, world: int, sizes: Mapping[str, Any]) -> Layout:
    return Layout(world=world, stages=uneven_stages(facts, sizes.get("pipeline", 1)), **sizes)


def powers(limit: int) -> list[int]:
    """The powers of 2 up to `limit`."""
    return [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]


def _rank(candidate: Candidate) -> tuple[int, ...]:
    """Those that fit: without recomputation, offload, sleep or staged engines, least divided; then those that
    do not.
    """
    layout, memory = candidate.layout, candidate.memory
    if memory is None:
        return (2, layout.replica, layout.expert * layout.expert_tensor)
    if not candidate.fits:
        return (1, memory.total)
    pieces = layout.replica * layout.expert * layout.expert_tensor
    run, kept = candidate.run, int(layout.recompute is not None)
    eased = kept + int(bool(run.optimizer.on_host)) + (SLEEPS.index(run.sleep) if run.engines else 0)
    eased += any(engines.pipeline > 1 for engines in run.engines)
    return (0, eased, pieces, len(set(layout.stages)), layout.pipeline, layout.tensor, memory.total)
