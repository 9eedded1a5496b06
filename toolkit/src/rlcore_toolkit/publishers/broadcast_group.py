"""The process group by which a trainer broadcasts weights to one engine.

The same as SGLang makes for `/init_weights_update_group`, rank 0 being the trainer: its keys in the store are
those of torch's own helper under SGLang's prefix. Made of c10d's parts, since that helper has one group of a
name in the whole process, needs a default group, and can't be told where to listen.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore import UnreachableError
from rlcore_toolkit.host import own_address

_c10d: Any = dist  # torch offers its parts without saying so to a type checker


class BroadcastGroup:
    """One rank. Each call blocks for at most `limit_s`: UnreachableError if the others do not take part.

    After a call has failed, the group can't be used any more.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        rank: int,
        size: int,
        backend: str,
        limit_s: float,
        listener: socket.socket | None = None,
    ) -> None:
        """Joins `size` ranks at `host:port`, where rank 0 listens by `listener`. `backend`: gloo or nccl."""
        self.name = name
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        )
        limit = timedelta(seconds=limit_s)
        with self._group_errors():
            # kept: rank 0 serves it as long as it lives
            self._store = _c10d.TCPStore(
                host,
                port,
                size,
                is_master=rank == 0,
                timeout=limit,
                master_listen_fd=listener.detach() if listener else None,
            )
            keys = self._store
            for prefix in (name, f"{name}/", f"{self.device.type}/"):
                keys = _c10d.PrefixStore(prefix, keys)
            self._group = (
                _nccl(keys, rank, size, limit) if backend == "nccl" else _gloo(keys, rank, size, limit, host)
            )

    def broadcast(self, tensor: Tensor) -> None:
        """From rank 0 into `tensor` of every other rank; contiguous, on `device`."""
        with self._group_errors():
            self._group.broadcast(tensor, 0).wait()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

    @contextlib.contextmanager
    def _group_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # c10d's errors are some of these
            reason = str(error).strip().split("\n")[0]
            raise UnreachableError(
                f"The weights' group {self.name} of trainer and engine failed: {reason}."
            ) from error


def _gloo(keys: Any, rank: int, size: int, limit: timedelta, host: str) -> Any:
    """Listens on the interface that reaches `host`, so that what is on the loopback stays there."""
    kind = _c10d.ProcessGroupGloo
    options = kind._Options()
    options._timeout = limit
    options._devices = [kind.create_device(hostname=own_address(host), lazy_init=False)]
    return kind(keys, rank, size, options)


def _nccl(keys: Any, rank: int, size: int, limit: timedelta) -> Any:
    kind = _c10d.ProcessGroupNCCL
    options = kind.Options()
    options._timeout = limit
    return kind(keys, rank, size, options)
