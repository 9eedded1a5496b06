"""The parallel layout of one trainer: process groups, ranks, and the seeds that depend on them.

megatron-core keeps the layout in globals of the process: one trainer a process.
"""

import os
import socket
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from rlcore import ConfigError
from rlcore_machine import listen
from rlcore_megatron.mcore.rng import set_seed
from rlcore_toolkit import stay_on

_STOP_SECONDS = 30.0


def start(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    *,
    listener: socket.socket | None = None,
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    context_parallel_size: int = 1,
    expert_model_parallel_size: int = 1,
    expert_tensor_parallel_size: int = 1,
    sequence_parallel: bool = False,
    seed: int = 0,
    timeout: float = 600.0,
) -> None:
    """Join `world_size` ranks at `address:port` (gloo on a CPU, NCCL on GPUs) and lay them out.

    The sizes are those of `--megatron.<field>`; what they leave over is data parallel. `timeout`: seconds
    that a rank waits for the others, here and in each collective after it. `listener`: rank 0's socket at
    `address:port`, which is taken over; without one it binds there itself. Where `address` is the loopback,
    everything else listens there too.
    """
    check_layout(
        world_size,
        tensor=tensor_model_parallel_size,
        pipeline=pipeline_model_parallel_size,
        context=context_parallel_size,
        expert=expert_model_parallel_size,
        expert_tensor=expert_tensor_parallel_size,
        sequence_parallel=sequence_parallel,
    )
    _quiet()
    if sequence_parallel:
        # megatron's order of kernels: communication must not overtake the matmul that it is hidden behind
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        # a worker that was given one GPU sees that one; one that sees all takes the one of its rank
        torch.cuda.set_device(rank % torch.cuda.device_count())
    # where all ranks share a host, no connection among them leaves it
    os.environ |= stay_on(address)
    dist.init_process_group(
        backend="nccl" if on_gpu else "gloo",
        store=_store(rank, world_size, address, port, listener, timeout),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tensor_model_parallel_size,
        pipeline_model_parallel_size=pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=virtual_pipeline_model_parallel_size,
        context_parallel_size=context_parallel_size,
        expert_model_parallel_size=expert_model_parallel_size,
        expert_tensor_parallel_size=expert_tensor_parallel_size,
        distributed_timeout_minutes=timeout / 60.0,
        # a second set of groups is of use only where the first is not gloo
        create_gloo_process_groups=on_gpu,
    )
    _seed(seed)


def _store(
    rank: int, world_size: int, address: str, port: int, listener: socket.socket | None, timeout: float
) -> Any:
    """The rendezvous. Left to itself torch listens on every interface."""
    if rank == 0:
        listener = listener or listen(address, port)
        port = listener.getsockname()[1]
    return dist.TCPStore(  # type: ignore[attr-defined]  # torch offers it without saying so
        address,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout),
        master_listen_fd=listener.detach() if listener else None,
    )


def check_layout(
    world_size: int,
    *,
    tensor: int,
    pipeline: int,
    context: int,
    expert: int,
    expert_tensor: int,
    sequence_parallel: bool,
) -> None:
    """Refuse (ConfigError) what cannot be laid out on `world_size` ranks."""
    if world_size % (tensor * pipeline * context):
        by_context = f" by {context} context-parallel" if context > 1 else ""
        raise ConfigError(
            f"{world_size} ranks cannot hold models of {tensor} tensor-parallel "
            f"by {pipeline} pipeline-parallel{by_context} ranks: "
            "the number of ranks must be a multiple of the product."
        )
    if world_size % (expert * expert_tensor * pipeline):
        by_tensor = f"by {expert_tensor} expert-tensor-parallel " if expert_tensor > 1 else ""
        raise ConfigError(
            f"{world_size} ranks cannot hold the experts of {expert} expert-parallel "
            f"{by_tensor}by {pipeline} pipeline-parallel ranks: "
            "the number of ranks must be a multiple of the product."
        )
    if sequence_parallel and tensor == 1:
        raise ConfigError(
            "--megatron.sequence-parallel needs --megatron.tensor-model-parallel-size 2 or more: "
            "it splits the sequence over the tensor-parallel ranks."
        )


def _quiet() -> None:
    # newer torch renames collectives that megatron-core calls by their old names
    warnings.filterwarnings("ignore", message="`torch.distributed.*` is deprecated", category=FutureWarning)


def stop() -> None:
    """Leave together: wait for the others (30 s at most, then an error), then tear the groups down.

    Without it a rank that ends first makes the others die in a signal now and then.
    """
    limit = timedelta(seconds=_STOP_SECONDS)
    try:
        # never by NCCL, which would take memory of a GPU for it
        group = dist.new_group(backend="gloo", timeout=limit) if dist.get_backend() == "nccl" else None
        work = dist.barrier(group, async_op=True)
        assert work is not None
        work.wait(limit)
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def _seed(seed: int) -> None:
    """Seed all generators; stages differ, data-parallel ranks do not, tensor-parallel ones where needed."""
    set_seed(seed + 100 * pipeline_rank())


def data_rank() -> int:
    """This rank among those that hold the same part of the model."""
    return int(parallel_state.get_data_parallel_rank())


def data_size() -> int:
    return int(parallel_state.get_data_parallel_world_size())


def data_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_data_parallel_group()
    return group


def tensor_rank() -> int:
    """This rank among those that share the layers of a stage."""
    return int(parallel_state.get_tensor_model_parallel_rank())


def tensor_size() -> int:
    return int(parallel_state.get_tensor_model_parallel_world_size())


def tensor_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
    return group


def context_rank() -> int:
    """This rank among those that share the tokens of a pack."""
    return int(parallel_state.get_context_parallel_rank())


def context_size() -> int:
    return int(parallel_state.get_context_parallel_world_size())


def context_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_context_parallel_group()
    return group


def pipeline_rank() -> int:
    """The stage of this rank."""
    return int(parallel_state.get_pipeline_model_parallel_rank())


def pipeline_size() -> int:
    return int(parallel_state.get_pipeline_model_parallel_world_size())


def pipeline_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
    return group


def virtual_size() -> int:
    """Chunks of the model that each stage holds: 1 without a virtual pipeline."""
    return parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1


def expert_rank() -> int:
    """This rank among those that share the experts of a layer."""
    return int(parallel_state.get_expert_model_parallel_rank())


def expert_size() -> int:
    return int(parallel_state.get_expert_model_parallel_world_size())


def expert_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_expert_model_parallel_group()
    return group


def expert_tensor_rank() -> int:
    """This rank among those that have a part of each of the same experts."""
    return int(parallel_state.get_expert_tensor_parallel_rank())


def expert_tensor_size() -> int:
    return int(parallel_state.get_expert_tensor_parallel_world_size())


def expert_tensor_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = parallel_state.get_expert_tensor_parallel_group()
    return group


def is_first_stage(chunk: int = 0) -> bool:
    """Whether tokens enter the stage's `chunk` here."""
    return pipeline_rank() == 0 and chunk == 0


def is_last_stage(chunk: int | None = None) -> bool:
    """Whether logits come out of the stage's `chunk` here; None: of any."""
    return pipeline_rank() == pipeline_size() - 1 and chunk in (None, virtual_size() - 1)
