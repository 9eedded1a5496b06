"""What the micro-batches of a rank gave, put together again."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from torch import Tensor

from rlcore_toolkit import current_device, rank_sums


def on_every_stage(parts: Sequence[Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`parts`, which the last stage of the pipeline has, as one tensor of the CPU on every stage."""
    whole = torch.cat(list(parts)) if parts else torch.empty(shape, dtype=dtype, device=current_device())
    if mpu.get_pipeline_model_parallel_world_size() > 1:
        last = mpu.get_pipeline_model_parallel_last_rank()
        dist.broadcast(whole, src=last, group=mpu.get_pipeline_model_parallel_group())
    return whole.cpu()


def sum_over_ranks(batches: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """The sums over micro-batches and data-parallel ranks, on every rank."""
    # The other tensor- and context-parallel ranks hold the same sums, which must count once.
    first = mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_context_parallel_rank() == 0
    return rank_sums(batches, current_device(), counts=first)
