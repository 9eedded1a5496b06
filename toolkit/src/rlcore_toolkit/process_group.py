"""How the ranks of a trainer meet, and how they part."""

import os
import random
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlcore_machine import listen
from rlcore_toolkit.host import stay_on

_STOP_SECONDS = 30.0


def join_group(
    rank: int,
    world_size: int,
    address: str,
    port: int,
    *,
    listener: socket.socket | None = None,
    timeout: float = 600.0,
) -> None:
    """Join `world_size` ranks at `address:port`: gloo on a CPU, NCCL on GPUs, one of which becomes current.

    `timeout`: seconds that a rank waits for the others, here and in each collective after it. `listener`:
    rank 0's socket at `address:port`, which is taken over; without one it binds there itself. Where `address`
    is the loopback, everything else listens there too.
    """
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


def current_device() -> torch.device:
    """Where models and batches of this process are: its current GPU, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def leave_group(close: Callable[[], None] = lambda: None) -> None:
    """Leave together: wait for the others (30 s at most, then an error), then tear the group down.

    `close`: gives up what was made of the group. Without the wait, a rank that ends first makes the others
    die in a signal now and then.
    """
    limit = timedelta(seconds=_STOP_SECONDS)
    try:
        # never by NCCL, which would take memory of a GPU for it
        group = dist.new_group(backend="gloo", timeout=limit) if dist.get_backend() == "nccl" else None
        work = dist.barrier(group, async_op=True)
        assert work is not None
        work.wait(limit)
    finally:
        close()
        dist.destroy_process_group()


def set_seeds(seed: int) -> None:
    """Seed python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # libraries draw from the global state
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    """The states of python, numpy and torch, as tensors, numbers, strings and tuples."""
    kind, keys, *rest = np.random.get_state()  # as above
    states = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """The inverse of `random_states`."""
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # as above
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


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
