"""What a rank needs under each layout: bytes on real ranks, and what `rlcore plan` says of them.

Each row is of the fullest rank, in bf16: weights, gradients and the optimizer's states as they are allocated,
and what a step saves for its backward pass.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import Row, machine, make_model, parser, publish, table, verdict

from rlcore.api.config import Config
from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.plugins.loader import load
from rlcore_megatron.fields import split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_megatron.plan.activations import Batch, saved
from rlcore_megatron.plan.layout import Layout
from rlcore_megatron.plan.memory import BYTES, states
from rlcore_testing.activations import equal_samples, saved_bytes, state_bytes
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, make_experts, policy_loss
from rlcore_toolkit import read_facts

WITHIN, DTYPE = 0.05, "bf16"
SAMPLES, PROMPT, RESPONSE = 4, 16, 48
TENSOR, PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_model_parallel_size"
SEQUENCE, LAST = "sequence_parallel", "num_layers_in_last_pipeline_stage"
DENSE: list[tuple[Layout, dict[str, Any]]] = [
    (Layout(world=1), {}),
    (Layout(world=2), {}),
    (Layout(world=2, tensor=2, sequence=True), {TENSOR: 2, SEQUENCE: True}),
    (Layout(world=2, pipeline=2), {PIPELINE: 2}),
    (Layout(world=2, pipeline=2, stages=(5, 3)), {PIPELINE: 2, LAST: 3}),
    (Layout(world=2, context=2), {CONTEXT: 2}),
    (
        Layout(world=4, tensor=2, pipeline=2, sequence=True),
        {TENSOR: 2, SEQUENCE: True, PIPELINE: 2},
    ),
]
SPARSE: list[tuple[Layout, dict[str, Any]]] = [
    (Layout(world=1), {}),
    (Layout(world=2, expert=2), {EXPERT: 2}),
    (
        Layout(world=4, tensor=2, expert=4, sequence=True),
        {TENSOR: 2, SEQUENCE: True, EXPERT: 4},
    ),
]
SHORT = {TENSOR: "TP", PIPELINE: "PP", CONTEXT: "CP", EXPERT: "EP"}


def main() -> None:
    """A dense model and one with experts."""
    args = parser(__doc__).parse_args()
    facts = machine(args.threads)
    dense = make_model(args.work / "dense", layers=8, width=256, vocab=VOCAB_SIZE)
    sparse = make_experts(args.work / "experts", hidden_size=256, num_hidden_layers=4)
    qwen = Part(name="qwen3", factory="rlcore_qwen.bridge:QwenBridge")
    glm = Part(name="glm4_moe", factory="rlcore_glm.moe:GlmMoeBridge", config=Config())
    rows = [_row("dense", dense, qwen, *each) for each in DENSE]
    rows += [_row("experts", sparse, glm, *each) for each in SPARSE]
    met = all(abs(row["planned MB"] - row["MB"]) <= WITHIN * row["MB"] for row in rows)
    text = f"{table(rows)}\n\nThe plan of a rank is within {WITHIN:.0%}: {verdict(met)}."
    publish("layout_bytes", facts, {"rows": rows}, text, dry=args.dry)


def _row(model: str, path: Path, bridge: Part, layout: Layout, fields: Mapping[str, Any]) -> Row:
    facts = read_facts(str(path), load().registry)
    tokens = SAMPLES * (PROMPT + RESPONSE - 1) // layout.context
    batch = Batch(tokens=tokens, rows=SAMPLES * RESPONSE // layout.context, bytes=BYTES[DTYPE], on_cpu=True)
    found = run_ranks(_measured, layout.world, str(path), bridge, dict(fields))
    stage, held, kept = max(found, key=lambda one: sum(one[1]) + one[2])
    plan = states(facts, layout, DTYPE, stage)
    planned = plan.weights + plan.gradients + plan.optimizer + saved(facts, layout, batch, stage)
    names = [f"{SHORT[name]} {size}" for name, size in fields.items() if name in SHORT]
    names += [f"{fields[LAST]} layers in the last stage"] if LAST in fields else []
    data = f"DP {layout.data}" if layout.data > 1 else ""
    parts = dict(zip(("weights", "gradients", "optimizer"), held, strict=True))
    return {
        "model": model,
        "layout": ", ".join(filter(None, [*names, data])) or "one rank",
        **{f"{name}, MB": size / 1e6 for name, size in parts.items()},
        "activations, MB": kept / 1e6,
        "MB": (sum(held) + kept) / 1e6,
        "planned MB": planned / 1e6,
    }


def _measured(
    rank: int, world: int, port: int, path: str, bridge: Part, fields: dict[str, Any]
) -> tuple[int, tuple[int, int, int], int]:
    """This rank's stage; bytes of weights, gradients and states; bytes that a step saves."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    parallel.start(rank, world, "127.0.0.1", port, **split(fields).layout)
    spec = ModelSpec(path=path, bridge=bridge, fields=fields, dtype=DTYPE)
    role = Role(spec, OptimizerSettings(lr=1e-5))
    batch, tokens = equal_samples(SAMPLES, PROMPT, RESPONSE), SAMPLES * (PROMPT + RESPONSE)
    kept = saved_bytes(
        role.models, lambda: role.train(batch, policy_loss, temperature=1.0, tokens_per_rank=tokens)
    )
    stage = parallel.pipeline_rank()
    parallel.stop()
    return stage, state_bytes(role), kept


if __name__ == "__main__":
    main()
