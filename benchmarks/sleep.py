"""Bytes that a sleep or the optimizer's offload takes off a rank's device, and what `rlcore plan` says of it.

Measured after a step, on two data-parallel ranks; each row is of the rank that has most. On a CPU the device
is the same memory, so that these are the bytes of the tensors which would leave a GPU.
"""

from __future__ import annotations

from typing import Any

from common import Row, machine, make_model, parser, publish, table, verdict

from rlcore.api.optimizer import OptimizerSettings
from rlcore.api.part import ModelSpec, Part
from rlcore.plugins.loader import load
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role import Role
from rlcore_plan.layout import Layout
from rlcore_plan.memory import Optimizer, Workload, of_stage, states
from rlcore_plan.published import read_facts
from rlcore_qwen.config import QwenConfig
from rlcore_testing.ranks import run_ranks
from rlcore_testing.tiny import VOCAB_SIZE, policy_loss, random_batch

RANKS, WITHIN = 2, 0.05
LAYERS, WIDTH = 8, 256
OFFLOAD = {"optimizer_cpu_offload": True}


def main() -> None:
    """Each dtype of the weights."""
    args = parser(__doc__).parse_args()
    facts = machine(args.threads)
    path = make_model(args.work / "sleep", layers=LAYERS, width=WIDTH, vocab=VOCAB_SIZE)
    rows: list[Row] = []
    for dtype in ("bf16", "fp32"):
        most = [
            max(of_ranks) for of_ranks in zip(*run_ranks(_measured, RANKS, str(path), dtype), strict=True)
        ]
        model = read_facts(str(path), load().registry)

        plan = of_stage(model, Layout(world=RANKS), Workload(dtype=dtype), 0)
        hosted = states(model, Layout(world=RANKS), dtype, 0, Optimizer(on_host=1.0)).hosted
        asleep = plan.gradients + plan.optimizer
        for setting, left, said in (
            ("`--sleep optimizer`", most[0], asleep),
            ("`--sleep all`", most[1], asleep + plan.weights),
            ("`--megatron.optimizer-cpu-offload`", most[2], hosted),
        ):
            rows.append({"weights": dtype, "setting": setting, "MB": left / 1e6, "planned MB": said / 1e6})
    met = all(abs(row["MB"] - row["planned MB"]) <= WITHIN * row["MB"] for row in rows)
    text = f"{table(rows)}\n\nThe plan is within {WITHIN:.0%}: {verdict(met)}."
    publish("sleep", facts, {"rows": rows}, text, dry=args.dry)


def _measured(rank: int, world: int, port: int, path: str, dtype: str) -> tuple[int, int, int]:
    """Bytes that leave the device: asleep but for the weights, all asleep, and by the offload."""
    parallel.start(rank, world, "127.0.0.1", port)
    role = _trained(path, dtype, {})
    optimizer, everything = role.sleep("optimizer"), role.sleep("all")
    offloaded = sum(
        tensor.nbytes
        for chained in _trained(path, dtype, OFFLOAD).optimizer.chained_optimizers
        for param, state in chained.optimizer.state.items()
        if param in chained.optimizer._hosted
        for tensor in state.values()
    )
    parallel.stop()
    return optimizer, everything, offloaded


def _trained(path: str, dtype: str, fields: dict[str, Any]) -> Role:
    """A policy after one step."""
    part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge", config=QwenConfig())
    role = Role(ModelSpec(path=path, bridge=part, fields=fields, dtype=dtype), OptimizerSettings(lr=1e-5))
    role.train(random_batch(4), policy_loss, temperature=1.0, tokens_per_rank=64)
    return role


if __name__ == "__main__":
    main()
