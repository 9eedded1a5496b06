"""What each number of a plan is made of: `--explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlcore_megatron.plan.adapters import adapter_weights
from rlcore_megatron.plan.engines import sequence_cache
from rlcore_megatron.plan.layout import Recompute
from rlcore_megatron.plan.memory import BYTES, CRITIC, POLICY, Memory
from rlcore_megatron.plan.weights import stage as weights_of_stage
from rlcore_toolkit import count_text, size_text

if TYPE_CHECKING:
    from rlcore_megatron.plan.candidate import Candidate


def explain_rank(candidate: Candidate) -> Iterator[str]:
    """The lines about the fullest rank."""
    memory = candidate.memory
    assert memory is not None
    yield f"The fullest rank is of pipeline stage {memory.stage + 1} of {candidate.layout.pipeline}:"
    yield from (f"  {line}" for line in _reasons(candidate, memory))


def _reasons(candidate: Candidate, memory: Memory) -> Iterator[str]:
    facts, layout, run = candidate.facts, candidate.layout, candidate.run
    held = sum(weight.numel for weight in weights_of_stage(facts, layout, memory.stage))
    size, state = BYTES[run.work.dtype], run.optimizer.state(run.work.dtype)
    yield f"weights {size_text(memory.weights)}: {count_text(held)} parameters × {size} bytes, padded"
    gradient = run.optimizer.gradient(run.work.dtype)
    of_each = [adapter_weights(facts, layout, memory.stage, one) for one in run.optimizer.adapters]
    adapted = sum(weight.numel for weights in of_each for weight in weights)
    trained = f"{count_text(adapted)} that train" if adapted else "as many"
    yield f"gradients {size_text(memory.gradients)}: {trained} × {gradient} bytes"
    where = f", {run.optimizer.on_host:.0%} of them in host memory" if run.optimizer.on_host else ""
    over = f"over {layout.shards} ranks" + (f" ({layout.expert_shards} of experts)" if facts.experts else "")
    shared = f"× {state} bytes{where}, {over}" if run.optimizer.is_sharded else "whole on each rank"
    yield f"optimizer {size_text(memory.optimizer)}: {shared}"
    batch = run.work.batch(layout)
    layers = len(layout.layers(facts, memory.stage))
    whose = f"{_share_kept(layout.recompute)} {layers} layers"
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


def _share_kept(recompute: Recompute | None) -> str:
    if recompute is None:
        return "all of"
    if recompute.modules:
        return f"all but {', '.join(recompute.modules)} of"
    count = recompute.layers
    if recompute.block:
        return f"all but {count} of each chunk, and the inputs of these, of"
    return "the inputs of" if count == 1 else f"the input of every {count} of"
