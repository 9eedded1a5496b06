"""What each rank of the trainer needs, in bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlcore import ModelFacts
from rlcore_plan.activations import Batch, saved, workspace
from rlcore_plan.buffers import lay_out
from rlcore_plan.layout import Layout
from rlcore_plan.weights import stage as weights_of_stage

BYTES = {"fp32": 4, "bf16": 2}
MOMENTS = 8
"""AdamW's two, in fp32; in bf16 an fp32 copy of the parameter comes with them."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`dtype`: "fp32" or "bf16". `tokens`: of a micro-batch. `micro_batches`: of an optimizer step."""

    dtype: str = "bf16"
    tokens: int = 8192
    micro_batches: int = 8

    def batch(self, layout: Layout) -> Batch:
        """A micro-batch of responses alone: the most that it can need."""
        tokens = math.ceil(self.tokens / layout.context)
        return Batch(tokens=tokens, rows=tokens, bytes=BYTES[self.dtype])


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one rank of pipeline stage `stage`."""

    stage: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations + self.workspace


def states(facts: ModelFacts, layout: Layout, dtype: str, stage: int) -> tuple[int, int, int]:
    """Bytes of weights, gradients and optimizer states of a rank of `stage`: of the rank that has most."""
    weights = weights_of_stage(facts, layout, stage)
    dense = lay_out([weight for weight in weights if not weight.is_expert], layout.shards)
    expert = lay_out([weight for weight in weights if weight.is_expert], layout.expert_shards)
    numel, owned = dense.numel + expert.numel, dense.states + expert.states
    copies = 0 if dtype == "fp32" else 4
    return numel * BYTES[dtype], numel * 4, owned * (MOMENTS + copies)


def of_stage(facts: ModelFacts, layout: Layout, work: Workload, stage: int) -> Memory:
    """The memory of a rank of `stage`; as many micro-batches are open as there are stages left."""
    weights, gradients, optimizer = states(facts, layout, work.dtype, stage)
    batch = work.batch(layout)
    open_batches = min(layout.pipeline - stage, work.micro_batches)
    return Memory(
        stage=stage,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=saved(facts, layout, batch, stage) * open_batches,
        workspace=workspace(facts, layout, batch, stage),
    )


def largest(facts: ModelFacts, layout: Layout, work: Workload) -> Memory:
    """The memory of the stage that needs most: the first one, the last one or one between them."""
    last = layout.pipeline - 1
    found = [of_stage(facts, layout, work, stage) for stage in sorted({0, min(1, last), last})]
    return max(found, key=lambda memory: memory.total)
