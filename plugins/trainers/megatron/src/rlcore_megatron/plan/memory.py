"""What each rank of the trainer needs, in bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from rlcore import ModelFacts
from rlcore_megatron.plan.activations import Batch, saved, workspace
from rlcore_megatron.plan.adapters import Adapted, adapter_weights
from rlcore_megatron.plan.buffers import lay_out
from rlcore_megatron.plan.layout import Layout, Recompute, uneven_stages
from rlcore_megatron.plan.scoring import scoring
from rlcore_megatron.plan.weights import Weight, stage as weights_of_stage

BYTES = {"fp32": 4, "bf16": 2}
FLOAT = 4
"""Bytes of a number in fp32."""
POLICY, CRITIC, REFERENCE, TEACHER = "policy", "critic", "reference", "teacher"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`dtype`: "fp32" or "bf16". `tokens`: of a micro-batch. `micro_batches`: of an optimizer step.

    `longest`: tokens of the longest sample; None: it fills a micro-batch.
    """

    dtype: str = "bf16"
    tokens: int = 8192
    micro_batches: int = 8
    longest: int | None = None

    def batch(self, layout: Layout) -> Batch:
        """A micro-batch of responses alone: the most that it can need."""
        tokens = math.ceil(self.tokens / layout.context)
        seen = self._seen(layout, tokens)
        size = BYTES[self.dtype]
        return Batch(tokens=tokens, rows=tokens, bytes=size, seen=seen, longest=self.longest)

    def _seen(self, layout: Layout, tokens: int) -> int | None:
        """By context parallelism a rank has two runs of the pack: each sees a sample up to its own end."""
        if layout.context == 1:
            return None
        of_one = layout.context * tokens + tokens // 2
        return of_one if self.longest is None else min(of_one, tokens + 2 * self.longest)


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """`moments`: bytes of those of a parameter, AdamW's two; `of_matrices`: of one that Muon trains.

    `on_host`: the share of the states in host memory. `owns_masters`: it has fp32 copies of fp32 weights too,
    as it does on the host or with narrow moments. `is_sharded`: data-parallel ranks share the states.
    `has_narrow_gradients`: gradients are in the weights' dtype, else in fp32. `adapters`: what trains, by
    turns, in place of the weights.
    """

    moments: int = 8
    of_matrices: int | None = None
    on_host: float = 0.0
    owns_masters: bool = False
    is_sharded: bool = True
    has_narrow_gradients: bool = False
    teaches_indexers: bool = False
    adapters: tuple[Adapted, ...] = ()

    def gradient(self, dtype: str) -> int:
        """Bytes of the gradient of one parameter."""
        return BYTES[dtype] if self.has_narrow_gradients else FLOAT

    def state(self, dtype: str) -> int:
        """Bytes of the states of one parameter."""
        return self.moments + self._master(dtype)

    def whole_states(self, weights: Sequence[Weight], dtype: str) -> int:
        """Bytes of the states of `weights`, which a rank has for itself."""
        matrices = self.moments if self.of_matrices is None else self.of_matrices
        own = {True: matrices + self._master(dtype), False: self.state(dtype)}
        return sum(weight.numel * own[weight.is_matrix] for weight in weights)

    def _master(self, dtype: str) -> int:
        return FLOAT if self.owns_masters or self.on_host or dtype != "fp32" else 0


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The model of a role on the policy's ranks.

    `stages`: as of a `Layout`, whose other sizes are the policy's. `optimizer`: of a critic; None: the model
    only scores. `is_swapped`: its weights are in host memory. `recompute`: what its own settings say;
    `owns_recompute`: they say it.
    """

    role: str
    facts: ModelFacts
    stages: tuple[int, ...] = ()
    optimizer: Optimizer | None = None
    is_swapped: bool = False
    recompute: Recompute | None = None
    owns_recompute: bool = False

    def divided(self, layout: Layout) -> Layout:
        """The policy's `layout` for this model; where its pipeline is another one, as a search divides.

        A layer for multi-token prediction is the policy's alone.
        """
        is_own = len(self.stages) == layout.pipeline
        stages = self.stages if is_own else uneven_stages(self.facts, layout.pipeline)
        recompute = self.recompute if self.owns_recompute else layout.recompute
        return replace(layout, stages=stages, recompute=recompute, mtp=False)

    def states(self, layout: Layout, stage: int, dtype: str) -> "States":
        """Those of a rank of `stage`; of a swapped model also the policy's weights while it computes."""
        own = self.divided(layout)
        if self.optimizer is not None:
            return states(self.facts, own, dtype, stage, self.optimizer, values=True)
        size = weight_bytes(self.facts, own, stage, dtype)
        return States(weights=0, hosted=2 * size) if self.is_swapped else States(weights=size)


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A role on ranks of its own, with a layout of its own. `optimizer`: of a critic; None: it is frozen."""

    role: str
    facts: ModelFacts
    layout: Layout
    work: Workload
    optimizer: Optimizer | None = None


@dataclass(frozen=True, kw_only=True)
class States:
    """Bytes of one rank. `hosted`: the optimizer's states on the host; `copies`: gradients beside them."""

    weights: int
    gradients: int = 0
    optimizer: int = 0
    hosted: int = 0
    copies: int = 0

    def __add__(self, other: "States") -> "States":
        return States(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank of pipeline stage `stage`.

    `roles`: weights of the models beside the policy; `role_states`: a critic's gradients and optimizer, of
    which `role_gradients` are the gradients.
    `waiting`: micro-batches whose activations wait for their backward pass. `busiest`: the role whose work
    (`activations` and `workspace`) takes most, one after the other. `host`: in host memory.
    """

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    roles: int = 0
    role_states: int = 0
    role_gradients: int = 0
    waiting: float = 1
    busiest: str = POLICY
    host: int = field(default=0, compare=False)

    @property
    def total(self) -> int:
        """On the device."""
        return self.states + self.activations + self.workspace

    @property
    def states(self) -> int:
        """What stays between steps."""
        return self.weights + self.gradients + self.optimizer + self.roles + self.role_states


@lru_cache(maxsize=4096)
def states(
    facts: ModelFacts,
    layout: Layout,
    dtype: str,
    stage: int,
    optimizer: Optimizer | None = None,
    *,
    values: bool = False,
) -> States:
    """The states of the rank of `stage` that has most of its optimizer's. `values`: of a critic."""
    optimizer = optimizer or Optimizer()
    weights = weights_of_stage(facts, layout, stage, values=values)
    taught = [weight for weight in weights if optimizer.teaches_indexers or not weight.is_index]
    trained = [adapter_weights(facts, layout, stage, adapter) for adapter in optimizer.adapters] or [taught]
    moving = 0 if optimizer.adapters else sum(weight.numel for weight in taught)
    frozen = States(weights=(sum(weight.numel for weight in weights) - moving) * BYTES[dtype])
    return sum((_with_optimizer(part, layout, dtype, optimizer) for part in trained), frozen)


def _with_optimizer(weights: Sequence[Weight], layout: Layout, dtype: str, optimizer: Optimizer) -> States:
    """Those of `weights`, which have buffers of their own."""
    gradient = optimizer.gradient(dtype)
    if not optimizer.is_sharded:  # megatron's buffers are padded for it alone
        numel, whole = sum(weight.numel for weight in weights), optimizer.whole_states(weights, dtype)
        return States(weights=numel * BYTES[dtype], gradients=numel * gradient, optimizer=whole)
    dense = lay_out([weight for weight in weights if not weight.is_expert], layout.shards)
    expert = lay_out([weight for weight in weights if weight.is_expert], layout.expert_shards)
    numel, owned = dense.numel + expert.numel, dense.states + expert.states
    hosted = round(owned * optimizer.on_host)
    return States(
        weights=numel * BYTES[dtype],
        gradients=numel * gradient,
        optimizer=(owned - hosted) * optimizer.state(dtype),
        hosted=hosted * optimizer.state(dtype),
        copies=hosted * FLOAT,
    )


def of_stage(
    facts: ModelFacts,
    layout: Layout,
    work: Workload,
    stage: int,
    optimizer: Optimizer | None = None,
    roles: Sequence[Beside] = (),
    *,
    values: bool = False,
) -> Memory:
    """The memory of a rank of `stage`. `values`: of a critic."""
    own = states(facts, replace(layout, recompute=None), work.dtype, stage, optimizer, values=values)
    others = sum((model.states(layout, stage, work.dtype) for model in roles), States(weights=0))
    batch, waiting = work.batch(layout), _open_batches(layout, work, stage)
    if optimizer is not None:
        batch = replace(batch, teaches_indexers=optimizer.teaches_indexers)
    adapters = (optimizer.adapters if optimizer else ()) or (None,)
    by_policy = [
        (
            saved(facts, layout, adapted, stage, waiting=waiting, values=values),
            workspace(facts, layout, adapted, stage, values=values),
        )
        for adapted in (replace(batch, adapter=adapter) for adapter in adapters)
    ]
    works = {POLICY: max(by_policy, key=sum)}
    for model in roles:
        theirs = model.divided(layout)
        if model.optimizer is not None:
            size = saved(model.facts, theirs, batch, stage, waiting=waiting, values=True)
            works[model.role] = (size, workspace(model.facts, theirs, batch, stage, values=True))
        else:
            works[model.role] = (scoring(model.facts, theirs, batch, stage), 0)
    busiest = max(works, key=lambda role: sum(works[role]))
    activations, made = works[busiest]
    return Memory(
        stage=stage,
        weights=own.weights,
        gradients=own.gradients,
        optimizer=own.optimizer,
        activations=activations,
        workspace=made,
        roles=others.weights,
        role_states=others.gradients + others.optimizer,
        role_gradients=others.gradients,
        waiting=waiting,
        busiest=busiest,
        host=own.hosted + own.copies + others.hosted + others.copies,
    )


def _open_batches(layout: Layout, work: Workload, stage: int) -> float:
    """Micro-batches whose activations wait for their backward pass: one for each stage that is left.

    Of a virtual pipeline in parts: a chunk of a stage has its own forward passes ahead.
    """
    if layout.virtual == 1:
        return min(layout.pipeline - stage, work.micro_batches)
    ahead = 2 * (layout.pipeline - stage - 1) + (layout.virtual - 1) * layout.pipeline + 1
    return min(ahead, work.micro_batches * layout.virtual) / layout.virtual


def weight_bytes(facts: ModelFacts, layout: Layout, stage: int, dtype: str) -> int:
    """Of a model without gradients, on a rank of `stage`."""
    return sum(weight.numel for weight in weights_of_stage(facts, layout, stage)) * BYTES[dtype]


def fullest(memories: Sequence[Memory]) -> Memory:
    """The one that needs most on the device."""
    return max(memories, key=lambda memory: memory.total)


@lru_cache(maxsize=256)
def of_stages(
    facts: ModelFacts,
    layout: Layout,
    work: Workload,
    optimizer: Optimizer | None = None,
    roles: tuple[Beside, ...] = (),
    *,
    values: bool = False,
) -> tuple[Memory, ...]:
    """The memory of each stage. Of equal ones (but for the last): of the first two and last two."""
    divided = [layout, *(model.divided(layout) for model in roles)]
    last, are_equal = layout.pipeline - 1, all(len(set(part.stages[:-1])) <= 1 for part in divided)
    stages = {0, min(1, last), max(0, last - 1), last} if are_equal else range(layout.pipeline)
    chosen = sorted(stages)
    return tuple(of_stage(facts, layout, work, stage, optimizer, roles, values=values) for stage in chosen)


def of_frozen(apart: Apart) -> dict[str, int]:
    """What a model on ranks of its own that only scores has on the fullest of them."""
    facts, layout, work = apart.facts, apart.layout, apart.work
    per_stage = (
        {
            "weights": weight_bytes(facts, layout, stage, work.dtype),
            "work": scoring(facts, layout, work.batch(layout), stage),
        }
        for stage in range(layout.pipeline)
    )
    return max(per_stage, key=lambda items: sum(items.values()))
