"""What the micro-batches of a rank gave, put together again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor

from rlcore import TrainBatch
from rlcore_megatron.mcore.imports import device
from rlcore_megatron.mcore.packing import Bins


def in_order(values: Tensor, batch: TrainBatch, bins: Bins) -> Tensor:
    """Values of the response tokens of the samples in `bins`, one after another → in `batch`'s order."""
    slots = torch.split(torch.arange(len(values)), batch.response_lengths.tolist())
    order = [slots[row] for rows in bins for row in rows]
    out = torch.empty_like(values)
    out[torch.cat(order) if order else slots] = values
    return out


def on_every_stage(parts: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`parts`, which the last stage of the pipeline has, as one tensor of the CPU on every stage."""
    whole = torch.cat(list(parts)) if parts else torch.empty(shape, dtype=dtype, device=device())
    if mpu.get_pipeline_model_parallel_world_size() > 1:
        last = mpu.get_pipeline_model_parallel_last_rank()
        dist.broadcast(whole, src=last, group=mpu.get_pipeline_model_parallel_group())
    return whole.cpu()


def sum_over_ranks(batches: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """The sums over micro-batches and data-parallel ranks, on every rank; in rank order, so reproducible."""
    mine: dict[str, float] = {}
    names = list(dict.fromkeys(name for metrics in batches for name in metrics))
    if names:
        zero = torch.zeros((), device=device())
        rows = [[metrics.get(name, zero).detach().to(torch.float64) for name in names] for metrics in batches]
        totals = torch.stack([value for row in rows for value in row]).view(len(rows), len(names)).sum(0)
        mine = dict(zip(names, totals.tolist(), strict=True))
    if dist.get_world_size() == 1:
        return mine
    # The other tensor- and context-parallel ranks hold the same sums, which must count once.
    first = mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_context_parallel_rank() == 0
    gathered: list[dict[str, float] | None] = [None] * dist.get_world_size()
    # As objects: a rank without response tokens knows no names of metrics.
    dist.all_gather_object(gathered, mine if first else None)
    whole: dict[str, float] = {}
    for part in gathered:
        for name, value in (part or {}).items():
            whole[name] = whole.get(name, 0.0) + value
    return whole
