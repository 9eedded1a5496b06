"""What tests of megatron's roles do on a rank: join, take a share of a batch, read the weights."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore import ModelSpec, OptimizerSettings, Part, TrainBatch, even_shares
from rlcore_megatron.fields import check_fields, split
from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.role.role import Role
from rlcore_testing.tiny import VOCAB_SIZE, policy_loss, random_batch
from rlcore_testing.trainer_ranks import weights_of

QWEN: Part = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
OPTIMIZER = OptimizerSettings(lr=1e-2, adam_eps=1e-4, clip_grad=0.5)
"""Its eps is well above the noise of tiny gradients, whose signs Adam would blow up to whole steps."""


def start(rank: int, world: int, port: int, fields: Mapping[str, Any] | None = None) -> None:
    """Join the other ranks under the layout of `--megatron` fields."""
    layout = split(check_fields(fields or {})).layout
    parallel.start(rank, world, "127.0.0.1", port, **layout)


def share_of(batch: TrainBatch) -> TrainBatch:
    """The samples of this data-parallel rank."""
    return batch.select(even_shares(batch.lengths.tolist(), parallel.data_size())[parallel.data_rank()])


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Fails at the first tensor that differs in any bit."""
    torch.testing.assert_close({**found}, {**expected}, rtol=0, atol=0)


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics without what a clock measured."""
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def gradients_of(role: Role) -> dict[str, Tensor]:
    """Those of the last step, by the names of the directory; the weights and buffers are lost."""
    with torch.no_grad():
        for chunk in role.built.chunks:
            for parameter in chunk.parameters():
                if parameter.requires_grad:  # an indexer is frozen
                    parameter.copy_(vars(parameter)["main_grad"])
            for buffer in chunk.buffers():
                buffer.zero_()
    return weights_of(role)


def mtp_step(
    rank: int, world: int, port: int, bridge: Part, path: Path, factor: float, layout: Mapping[str, Any]
) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """A step that changes nothing, with a layer for multi-token prediction: its loss, weights, gradients."""
    start(rank, world, port, layout)
    fields = {"mtp_num_layers": 1, "mtp_loss_scaling_factor": factor, "use_distributed_optimizer": False}
    settings = OptimizerSettings(lr=0.0, clip_grad=0.0)
    role = Role(ModelSpec(path=str(path), bridge=bridge, fields={**fields, **layout}), settings)
    step = role.train(share_of(random_batch(9)), policy_loss, temperature=1.0, tokens_per_rank=50)
    result = step.extras["mtp_loss"], weights_of(role), gradients_of(role)
    parallel.stop()
    return result


def save_or_resume(
    rank: int,
    world: int,
    port: int,
    bridge: Part,
    path: Path,
    folder: Path,
    fields: Mapping[str, Any],
    vocabulary: int = VOCAB_SIZE,
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The weights after a step, which are saved in `folder`, or those that are there; then the next step.

    Of the next step its weights and the gradient norm.
    """
    start(rank, world, port, fields)
    role = Role(ModelSpec(path=str(path), bridge=bridge, fields=fields), replace(OPTIMIZER, clip_grad=1.0))

    def step(seed: int) -> float:
        batch = random_batch(8, seed)
        mine = share_of(replace(batch, tokens=batch.tokens % vocabulary))
        return role.train(mine, policy_loss, temperature=1.0, tokens_per_rank=64).grad_norm

    if folder.exists():
        role.load(folder)
    else:
        step(0)
        role.save(folder)
    saved, norm = weights_of(role), step(1)
    result = saved, weights_of(role), norm
    parallel.stop()
    return result
