"""How a model is divided between ranks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from rlcore import ModelFacts


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """What the backward pass computes again: layers in pieces of `layers`, of which only the input is kept.

    `block`: that many layers of each chunk, one by one, and no others. `modules`: of every layer these alone.
    `distributed`: tensor-parallel ranks divide the inputs that are kept.
    """

    layers: int = 1
    block: bool = False
    modules: tuple[str, ...] = ()
    distributed: bool = False


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`world` ranks; what tensor, pipeline and context parallelism leave over is data parallel.

    Experts are divided over `expert` ranks, and each of them over `expert_tensor`. `sequence`: sequence
    parallelism. `recompute` None: everything is kept.
    `stages`: layers of each pipeline stage; empty: equally many. `virtual`: chunks of each stage (a
    virtual pipeline). `mtp`: the last stage has the policy's layer for multi-token prediction.
    """

    world: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    sequence: bool = False
    recompute: Recompute | None = None
    stages: tuple[int, ...] = ()
    virtual: int = 1
    mtp: bool = False

    @property
    def replica(self) -> int:
        """Ranks that hold one replica of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Data-parallel replicas."""
        return self.world // self.replica

    @property
    def shards(self) -> int:
        """Ranks that share the optimizer states of what is no expert."""
        return self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Ranks that share the optimizer states of an expert."""
        return self.world // (self.expert * self.expert_tensor * self.pipeline)

    def layers(self, facts: ModelFacts, stage: int) -> range:
        """The numbers of the model's layers that pipeline stage `stage` has."""
        counts = self.stages or (facts.layers // self.pipeline,) * self.pipeline
        start = sum(counts[:stage])
        return range(start, start + counts[stage])

    def layers_start_in(self, facts: ModelFacts, layers: frozenset[int]) -> bool:
        """Whether every chunk of every stage starts on one of `layers`."""
        stages = [self.layers(facts, stage) for stage in range(self.pipeline)]
        if self.virtual == 1:
            return all(part.start in layers for part in stages if part)
        count = max(1, facts.layers // (self.pipeline * self.virtual))
        return all(start in layers for start in range(0, facts.layers, count))

    @property
    def has_own_first(self) -> bool:
        """Whether the first stage has other layers than those between it and the last one."""
        return len(set(self.stages[:-1])) > 1

    @property
    def name(self) -> str:
        """Such as `TP 2, PP 4, DP 16`; of uneven stages with the layers of those that differ."""
        first = f"first {self.stages[0]}, " if self.has_own_first else ""
        uneven = f" ({first}last {self.stages[-1]})" if len(set(self.stages)) > 1 else ""
        sizes = {
            **{"TP": self.tensor, "PP": self.pipeline, "CP": self.context},
            **{"EP": self.expert, "ETP": self.expert_tensor},
        }
        parts = [f"{name} {size}{uneven * (name == 'PP')}" for name, size in sizes.items() if size > 1]
        return ", ".join([*parts, f"DP {self.data}"])


@cache
def uneven_stages(facts: ModelFacts, pipeline: int) -> tuple[int, ...]:
    """Layers of stages that are equal but for a smaller last one; empty where all are equal, or none can be.

    Where one would start on a layer without an indexer: of stages with another first and last one, those
    whose largest is the smallest.
    """
    layers = facts.layers
    each = -(-layers // pipeline)
    last = layers - each * (pipeline - 1)
    stages = (*(each,) * (pipeline - 1), last) if layers % pipeline and last > 0 else ()
    index = facts.latent.index if facts.latent else None
    if index is None or Layout(world=1, pipeline=pipeline, stages=stages).layers_start_in(
        facts, index.layers
    ):
        return stages
    middle = pipeline - 2
    found = [
        (first, *(each,) * middle, layers - first - middle * each)
        for first in index.layers - {0}
        for each in range(1, (layers - first - 1) // max(1, middle) + 1)
        if all(first + stage * each in index.layers for stage in range(middle + 1))
    ]
    return min(found, key=lambda stages: (max(stages), -min(stages)), default=stages)


def objections(facts: ModelFacts, layout: Layout) -> Iterator[str]:
    """Why the trainer cannot divide the model so: one clause each."""
    tensor, pipeline = layout.tensor, layout.pipeline
    counts = {"attention heads": facts.heads, "intermediate size": facts.width}
    if facts.latent is None:
        counts["key-value heads"] = facts.groups
    if facts.experts is not None and facts.experts.shared:
        counts["width of the shared experts"] = facts.experts.shared
    keys, parts = facts.delta.key_heads if facts.delta else 0, tensor * layout.context
    if keys % parts:
        yield f"TP × CP = {parts} does not divide the key heads of delta nets ({keys})"
    for name, count in counts.items():
        if count % tensor:
            yield f"TP {tensor} does not divide the {name} ({count})"
    if layout.stages and (len(layout.stages) != pipeline or sum(layout.stages) != facts.layers):
        listed = ", ".join(map(str, layout.stages))
        yield f"stages of {listed} layers are not the {facts.layers} of the model on PP {pipeline}"
    elif not layout.stages and facts.layers % pipeline:
        yield f"PP {pipeline} does not divide the {facts.layers} layers"
    index = facts.latent.index if facts.latent else None
    if index is not None and layout.world and not layout.layers_start_in(facts, index.layers):
        yield f"on PP {pipeline} a stage starts on a layer without an indexer"
    if layout.world % layout.replica:
        yield f"TP × PP × CP = {layout.replica} does not divide {layout.world} GPUs"
    sparse = {"EP": layout.expert, "ETP": layout.expert_tensor}
    if facts.experts is None:
        yield from (
            f"{name} {size}, but the model has no experts" for name, size in sparse.items() if size > 1
        )
    if facts.experts is not None:
        if facts.experts.count % layout.expert:
            yield f"EP {layout.expert} does not divide the {facts.experts.count} experts"
        if facts.experts.width % layout.expert_tensor:
            yield f"ETP {layout.expert_tensor} does not divide the size of an expert ({facts.experts.width})"
        pieces = layout.expert * layout.expert_tensor * pipeline
        if layout.world % pieces:
            times = " × ETP" if layout.expert_tensor > 1 else ""
            yield f"EP{times} × PP = {pieces} does not divide {layout.world} GPUs"
    if layout.sequence and tensor == 1:
        yield "sequence parallelism needs TP 2 or more"
