"""What each number of a plan is made of: `--explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlcore import ModelFacts
from rlcore_plan.engines import sequence_cache
from rlcore_plan.layout import Recompute
from rlcore_plan.memory import BYTES, CRITIC, POLICY, Memory
from rlcore_plan.search import Candidate
from rlcore_plan.units import count_text, size_text
from rlcore_plan.weights import stage as weights_of_stage

if TYPE_CHECKING:
    from rich.console import Console


def explain_rank(console: Console, facts: ModelFacts, candidate: Candidate) -> None:
    """Of the fullest rank."""
    assert candidate.needs is not None
    stage, stages = candidate.needs.memory.stage + 1, candidate.layout.pipeline
    console.print(f"The fullest rank is of pipeline stage {stage} of {stages}:", highlight=False)
    for line in _reasons(facts, candidate, candidate.needs.memory):
        console.print(f"  {line}", highlight=False, soft_wrap=True)


def _reasons(facts: ModelFacts, candidate: Candidate, memory: Memory) -> Iterator[str]:
    layout, run = candidate.layout, candidate.run
    held = sum(weight.numel for weight in weights_of_stage(facts, layout, memory.stage))
    size, state = BYTES[run.work.dtype], run.optimizer.state(run.work.dtype)
    yield f"weights {size_text(memory.weights)}: {count_text(held)} parameters × {size} bytes, padded"
    gradient = run.optimizer.gradient(run.work.dtype)
    yield f"gradients {size_text(memory.gradients)}: as many × {gradient} bytes"
    where = f", {run.optimizer.on_host:.0%} of them in host memory" if run.optimizer.on_host else ""
    over = f"over {layout.shards} ranks" + (f" ({layout.expert_shards} of experts)" if facts.experts else "")
    shared = f"× {state} bytes{where}, {over}" if run.optimizer.is_sharded else "whole on each rank"
    yield f"optimizer {size_text(memory.optimizer)}: {shared}"
    batch = run.work.batch(layout)
    layers = len(layout.layers(facts, memory.stage))
    whose = f"{_kept(layout.recompute)} {layers} layers"
    if memory.busiest != POLICY:
        whose = f"of the {memory.busiest}, which needs more than the policy"
    line = f"activations {size_text(memory.activations)}: {whose}, {batch.tokens} tokens"
    if memory.busiest in (POLICY, CRITIC):  # the others have no backward pass
        line += f", micro-batches that wait for their backward pass: {memory.waiting:g} at most"
    yield line
    shared = "; on any stage, values that context-parallel ranks gather" if layout.context > 1 else ""
    yield f"work {size_text(memory.workspace)}: logits of a micro-batch, on the last stage alone{shared}"
    for engines in run.engines:
        whose = f" of {engines.group}" if engines.group else ""
        each = sequence_cache(facts, engines, run.work.dtype)
        yield f"KV cache{whose}: {size_text(each)} for a sequence of {engines.tokens} tokens"


def _kept(recompute: Recompute | None) -> str:
    if recompute is None:
        return "all of"
    if recompute.modules:
        return f"all but {', '.join(recompute.modules)} of"
    count = recompute.layers
    if recompute.block:
        return f"all but {count} of each chunk, and the inputs of these, of"
    return "the inputs of" if count == 1 else f"the input of every {count} of"
