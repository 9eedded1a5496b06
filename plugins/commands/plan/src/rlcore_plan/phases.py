"""What is on a GPU, and in a host, in each phase of a step: training, publication, generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlcore import ModelFacts
from rlcore_plan.engines import Engines, sequence_cache, sequences_asked, weights as engine_weights
from rlcore_plan.layout import Layout
from rlcore_plan.memory import BYTES, Memory, Optimizer, Roles, Workload, largest
from rlcore_plan.weights import whole

MARGIN = 0.1
"""Share of a GPU that is left to CUDA, NCCL and fragmentation."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """`gpus` in all, `per_node` in a node, of `memory` bytes each; `host`: bytes of a node's own memory."""

    gpus: int
    memory: int
    per_node: int = 8
    host: int | None = None

    @property
    def usable(self) -> int:
        """Bytes of a GPU that are planned with."""
        return int(self.memory * (1 - MARGIN))


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run does with the GPUs, whatever its layout.

    `sleep`: as `--sleep`. `bucket`: bytes of one message of a publication. `engines` None: nothing generates,
    or it is not planned.
    """

    work: Workload
    optimizer: Optimizer = field(default_factory=Optimizer)
    roles: Roles = field(default_factory=Roles)
    engines: Engines | None = None
    is_colocated: bool = True
    sleep: str = "none"
    bucket: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Bytes of each thing that is on a GPU at the same time, and of what there may be."""

    name: str
    items: Mapping[str, int]
    limit: int
    note: str = ""

    @property
    def total(self) -> int:
        return sum(self.items.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.limit


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Of a layout: the fullest rank, the phases of a step, and the bytes in the memory of each node."""

    memory: Memory
    phases: tuple[Phase, ...] = field(compare=False)
    host: int = 0


def needs(facts: ModelFacts, layout: Layout, run: Run, machines: Machines) -> Needs:
    """What `run` needs under `layout`."""
    memory = largest(facts, layout, run.work, run.optimizer, run.roles)
    phases = tuple(_phases(facts, memory, run, machines))
    asleep = run.is_colocated and run.engines is not None
    host = memory.host + (_slept(memory, run.sleep) if asleep else 0)
    return Needs(memory=memory, phases=phases, host=host * min(machines.per_node, layout.world))


def _phases(facts: ModelFacts, memory: Memory, run: Run, machines: Machines) -> Iterator[Phase]:
    trainer = _awake(memory, "none")
    training = {**trainer, "activations": memory.activations, "work": memory.workspace}
    yield Phase(name="train", items=training, limit=machines.usable)
    if run.engines is None:
        return
    served = {"engine's weights": engine_weights(facts, run.engines, run.work.dtype)}
    message = {"publication": run.bucket + _largest_tensor(facts) * BYTES[run.work.dtype]}
    if run.is_colocated:
        held = trainer if run.sleep == "none" else _awake(memory, "optimizer")
        yield Phase(name="publish", items={**held, **message, **served}, limit=machines.usable)
        yield _generation(facts, {**_awake(memory, run.sleep), **served}, run.engines, run, machines)
    else:
        yield Phase(name="publish", items={**trainer, **message}, limit=machines.usable)
        yield _generation(facts, served, run.engines, run, machines)


def _generation(
    facts: ModelFacts, held: Mapping[str, int], engines: Engines, run: Run, machines: Machines
) -> Phase:
    """With the cache of as many sequences as are asked for, or as there is room for: one at least."""
    one, asked = sequence_cache(facts, engines, run.work.dtype), sequences_asked(engines)
    room = machines.usable - sum(held.values())
    if engines.share is not None:
        room = min(room, int(engines.share * machines.memory) - held["engine's weights"])
    count = max(1, min(asked, room // one))
    note = f"the KV cache holds {count} of {asked} sequences of {engines.tokens} tokens at once"
    limit = sum(held.values()) + room
    return Phase(name="generate", items={**held, "KV cache": count * one}, limit=limit, note=note)


def _slept(memory: Memory, sleep: str) -> int:
    """Bytes that leave for host memory; gradients are forgotten."""
    if sleep == "none":
        return 0
    states = memory.optimizer + memory.role_states  # a critic's gradients are forgotten too: a little less
    return states + (memory.weights + memory.roles if sleep == "all" else 0)


def _awake(memory: Memory, sleep: str) -> dict[str, int]:
    """What of the trainer stays on the GPU while its engines generate."""
    if sleep == "all":
        return {}
    if sleep == "optimizer":
        return {"weights": memory.weights, "other models": memory.roles}
    return {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "other models": memory.roles + memory.role_states,
    }


def _largest_tensor(facts: ModelFacts) -> int:
    """Numbers of the largest tensor that is gathered whole: of a layer's experts, one."""
    count = facts.experts.count if facts.experts else 1
    return max(weight.numel // (count if weight.is_expert else 1) for weight in whole(facts))
