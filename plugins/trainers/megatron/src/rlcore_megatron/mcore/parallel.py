"""The parallel layout of one trainer: process groups, ranks, and the seeds that depend on them.

megatron-core keeps the layout in globals of the process: one trainer a process.
"""

import os
import socket
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rlcore_megatron.config import CONTEXT, EXPERT, EXPERT_TENSOR, TENSOR
from rlcore_megatron.mcore.rng import set_seed
from rlcore_megatron.pipeline import PIPELINE
from rlcore_toolkit import join_group, leave_group

_SIZES = (TENSOR, PIPELINE, CONTEXT, EXPERT, EXPERT_TENSOR)
_Number = Callable[[], int]
_Group = Callable[[], dist.ProcessGroup]


def start(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    *,
    listener: socket.socket | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    sequence_parallel: bool = False,
    virtual_pipeline_model_parallel_size: int | None = None,
    **sizes: int,
) -> None:
    """Join `world_size` ranks at `address:port` (gloo on a CPU, NCCL on GPUs) and lay them out.

    `sizes` are those of `--megatron.<field>`, 1 where not given; what they leave over is data parallel.
    `timeout`: seconds that a rank waits for the others, here and in each collective after it. `listener`:
    rank 0's socket at `address:port`, which is taken over; without one it binds there itself. Where `address`
    is the loopback, everything else listens there too.
    """
    sizes = {**dict.fromkeys(_SIZES, 1), **sizes}
    # newer torch renames collectives that megatron-core calls by their old names
    warnings.filterwarnings("ignore", message="`torch.distributed.*` is deprecated", category=FutureWarning)
    if sequence_parallel:
        # megatron's order of kernels: communication must not overtake the matmul that it is hidden behind
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    join_group(rank, world_size, address, port, listener=listener, timeout=timeout)
    parallel_state.initialize_model_parallel(
        **sizes,
        virtual_pipeline_model_parallel_size=virtual_pipeline_model_parallel_size,
        distributed_timeout_minutes=timeout / 60.0,
        # a second set of groups is of use only where the first is not gloo
        create_gloo_process_groups=torch.cuda.is_available(),
    )
    # Stages draw differently, data-parallel ranks alike, and tensor-parallel ones as megatron needs it.
    set_seed(seed + 100 * pipeline_rank())


def stop() -> None:
    """Leave together, as `leave_group` does."""
    leave_group(parallel_state.destroy_model_parallel)


data_rank: _Number = parallel_state.get_data_parallel_rank
"""This rank among those that hold the same part of the model."""
data_size: _Number = parallel_state.get_data_parallel_world_size
data_group: _Group = parallel_state.get_data_parallel_group

tensor_rank: _Number = parallel_state.get_tensor_model_parallel_rank
"""This rank among those that share the layers of a stage."""
tensor_size: _Number = parallel_state.get_tensor_model_parallel_world_size
tensor_group: _Group = parallel_state.get_tensor_model_parallel_group

context_rank: _Number = parallel_state.get_context_parallel_rank
"""This rank among those that share the tokens of a pack."""
context_size: _Number = parallel_state.get_context_parallel_world_size
context_group: _Group = parallel_state.get_context_parallel_group

pipeline_rank: _Number = parallel_state.get_pipeline_model_parallel_rank
"""The stage of this rank."""
pipeline_size: _Number = parallel_state.get_pipeline_model_parallel_world_size
pipeline_group: _Group = parallel_state.get_pipeline_model_parallel_group

expert_rank: _Number = parallel_state.get_expert_model_parallel_rank
"""This rank among those that share the experts of a layer."""
expert_size: _Number = parallel_state.get_expert_model_parallel_world_size
expert_group: _Group = parallel_state.get_expert_model_parallel_group

expert_tensor_rank: _Number = parallel_state.get_expert_tensor_parallel_rank
"""This rank among those that have a part of each of the same experts."""
expert_tensor_size: _Number = parallel_state.get_expert_tensor_parallel_world_size
expert_tensor_group: _Group = parallel_state.get_expert_tensor_parallel_group


def virtual_size() -> int:
    """Chunks of the model that each stage holds: 1 without a virtual pipeline."""
    return parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1


def is_first_stage(chunk: int = 0) -> bool:
    """Whether tokens enter the stage's `chunk` here."""
    return pipeline_rank() == 0 and chunk == 0


def is_last_stage(chunk: int | None = None) -> bool:
    """Whether logits come out of the stage's `chunk` here; None: of any."""
    return pipeline_rank() == pipeline_size() - 1 and chunk in (None, virtual_size() - 1)
