"""What is on a GPU, and in a host, in each phase of a step: training, publication, generation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlcore import ModelFacts
from rlcore_megatron.plan.adapters import Adapted, whole_numbers
from rlcore_megatron.plan.engines import (
    BITS,
    Engines,
    Frozen,
    sequence_cache,
    weights as engine_weights,
)
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import (
    BYTES,
    Apart,
    Beside,
    Memory,
    Optimizer,
    Workload,
    fullest,
    of_frozen,
    of_stages,
)
from rlcore_megatron.plan.publication import publication
from rlcore_toolkit import CACHE, SERVED, Machines, Phase, generation


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run does with the GPUs, whatever its layout.

    `apart`: roles with ranks of their own. `engines`: of each group; empty: nothing generates, or it is not
    planned. `sleep`: as `--sleep`. `bucket`: bytes of one message of a publication. `sends_fp8`: the model is
    in FP8, so that a publication quantizes.
    """

    work: Workload
    optimizer: Optimizer = field(default_factory=Optimizer)
    roles: tuple[Beside, ...] = ()
    apart: tuple[Apart, ...] = ()
    engines: tuple[Engines, ...] = ()
    frozen: tuple[Frozen, ...] = ()
    is_colocated: bool = True
    sleep: str = "none"
    bucket: int = 0
    sends_fp8: bool = False

    @property
    def published_dtype(self) -> str:
        """In which weights travel to the engines; of what is in FP8, that of the rest."""
        return next((engines.dtype for engines in self.engines if engines.dtype), self.work.dtype)

    @property
    def travelling(self) -> Sequence[Adapted]:
        """The adapters that engines get in the place of whole weights."""
        return [adapter for adapter in self.optimizer.adapters if adapter.travels]

    def published_bytes(self, facts: ModelFacts) -> int:
        """Bytes that reach an engine with each publication: every weight once, or those of adapters."""
        if self.travelling:
            return whole_numbers(facts, self.travelling) * BYTES[self.published_dtype]
        bits = BITS if self.sends_fp8 else None
        engine = Engines(count=1, sequences=1, tokens=1, weight_bits=bits)
        return engine_weights(facts, engine, self.published_dtype)

    def served_bytes(self, facts: ModelFacts, engines: Engines) -> int:
        """Bytes of an engine's weights on a GPU; SGLang has a slot for each adapter, and one for the base."""
        weights, adapters = engine_weights(facts, engines, self.work.dtype), self.travelling
        if not adapters:
            return weights
        targets = frozenset(target for adapter in adapters for target in adapter.targets)
        largest = Adapted(rank=max(adapter.rank for adapter in adapters), targets=targets)
        numbers = whole_numbers(facts, [largest]) * (1 + len(adapters)) // engines.pipeline
        return weights + numbers * BYTES[engines.dtype or self.work.dtype]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The fullest rank of a layout, the phases of a step, and the bytes in the memory of each node."""

    memory: Memory
    phases: tuple[Phase, ...] = field(compare=False)
    host: int = 0


def needs(facts: ModelFacts, layout: Layout, run: Run, machines: Machines) -> Needs:
    """What `run` needs under `layout`."""
    stages = of_stages(facts, layout, run.work, run.optimizer, run.roles)
    phases = tuple(_phases(facts, layout, stages, run, machines))
    asleep = run.is_colocated and bool(run.engines)
    host = max(memory.host + (slept(memory, run.sleep) if asleep else 0) for memory in stages)
    policy = host * min(machines.per_node, layout.world)
    return Needs(memory=fullest(stages), phases=phases, host=_host(policy, layout, run, machines))


def _host(policy: int, layout: Layout, run: Run, machines: Machines) -> int:
    """The bytes of the fullest node: the policy's or the critic's, or the one that has both."""
    for critic in run.apart:
        if critic.optimizer is not None:
            ranks = critic.layout.world
            own = _critic_memory(critic).host * min(machines.per_node, ranks)
            return policy + own if layout.world + ranks <= machines.per_node else max(policy, own)
    return policy


def _critic_memory(critic: Apart) -> Memory:
    """The memory of its fullest rank."""
    return fullest(of_stages(critic.facts, critic.layout, critic.work, critic.optimizer, values=True))


def _phases(
    facts: ModelFacts, layout: Layout, stages: Sequence[Memory], run: Run, machines: Machines
) -> Iterator[Phase]:
    yield _training("train", fullest(stages), machines)
    for apart in run.apart:
        yield _working(apart, machines)
    if run.engines:
        yield _publication(facts, layout, stages, run, machines)
    for engines in run.engines:
        held = _most_awake(stages, run.sleep) if run.is_colocated else {}
        yield _generation(facts, held, engines, run, machines)
    for frozen in run.frozen:
        yield _serving(frozen, run.work.dtype, machines)


def _training(name: str, memory: Memory, machines: Machines) -> Phase:
    work = {"activations": memory.activations, "work": memory.workspace}
    return Phase(name=name, items={**_awake(memory, "none"), **work}, limit=machines.usable)


def _working(apart: Apart, machines: Machines) -> Phase:
    """The phases of a role on ranks of its own: a critic trains, a frozen model only scores."""
    if apart.optimizer is not None:
        return replace(_training("train the critic", _critic_memory(apart), machines), is_apart=True)
    name = f"score by the {apart.role}"
    return Phase(name=name, items=of_frozen(apart), limit=machines.usable, is_apart=True)


def _publication(
    facts: ModelFacts, layout: Layout, stages: Sequence[Memory], run: Run, machines: Machines
) -> Phase:
    dtype = run.work.dtype
    held = _most_awake(stages, "none" if run.sleep == "none" or not run.is_colocated else "optimizer")
    if run.travelling:
        # gathered on one rank, cast, and put together
        made = whole_numbers(facts, run.travelling) * BYTES[dtype] + 2 * run.published_bytes(facts)
    else:
        made = publication(facts, layout, dtype, run.published_dtype, run.bucket, fp8=run.sends_fp8)
    items = {**held, "publication": made}
    if run.is_colocated:  # a GPU has an engine of one group
        items[SERVED] = max(run.served_bytes(facts, engines) for engines in run.engines)
    return Phase(name="publish", items=items, limit=machines.usable)


def _generation(
    facts: ModelFacts, trainer: Mapping[str, int], engines: Engines, run: Run, machines: Machines
) -> Phase:
    return generation(
        trainer,
        machines,
        weights=run.served_bytes(facts, engines),
        sequence=sequence_cache(facts, engines, run.work.dtype),
        asked=-(-engines.sequences // engines.parts),  # of a GPU
        tokens=engines.tokens,
        share=engines.share,
        name=engines.phase,
        is_apart=not run.is_colocated,
    )


def _serving(frozen: Frozen, dtype: str, machines: Machines) -> Phase:
    """A model that is not trained, with the cache of one sequence; a classifier keeps none."""
    engines, facts, name = frozen.engines, frozen.facts, f"serve {frozen.name}"
    if facts is None:
        note = "not counted: rlcore plans for no such model"
        return Phase(name=name, items={}, limit=machines.usable, note=note, is_apart=True)
    cache = {} if engines.is_classifier else {CACHE: sequence_cache(facts, engines, dtype)}
    limit = machines.usable
    if engines.share is not None:
        limit = min(limit, int(engines.share * machines.memory))
    items = {SERVED: engine_weights(facts, engines, dtype), **cache}
    return Phase(name=name, items=items, limit=limit, is_apart=True)


def slept(memory: Memory, sleep: str) -> int:
    """Bytes that leave for host memory; gradients are forgotten, a critic's too."""
    if sleep == "none":
        return 0
    # optimizer + a critic's optimizer; with "all" also the weights of every model
    states = memory.optimizer + memory.role_states - memory.role_gradients
    return states + (memory.weights + memory.roles if sleep == "all" else 0)


def _most_awake(stages: Sequence[Memory], sleep: str) -> dict[str, int]:
    """The memory of the stage that keeps most on the GPU between training steps."""
    return max((_awake(memory, sleep) for memory in stages), key=lambda items: sum(items.values()))


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
