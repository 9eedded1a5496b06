"""The process group by which a trainer broadcasts weights to one engine.

The same as SGLang makes for `/init_weights_update_group`, rank 0 being the trainer: its keys in the store are
those of torch's own helper under SGLang's prefix. Made of c10d's parts, since that helper has one group of a
name in the whole process, needs a default group, and can't be told where to listen.
"""

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlcore import EngineError, UnreachableError
from rlcore_machine import listen
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
        on_gpu = backend == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
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
            kind = _c10d.ProcessGroupNCCL if on_gpu else _c10d.ProcessGroupGloo
            options = kind.Options() if on_gpu else kind._Options()
            options._timeout = limit
            if not on_gpu:
                # the interface that reaches `host`, so that what is on the loopback stays there
                options._devices = [kind.create_device(hostname=own_address(host), lazy_init=False)]
            self._group = kind(keys, rank, size, options)

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


class BroadcastSender:
    """Keeps one bucket, and broadcasts it to engines, each in a group of its own.

    An engine that dies breaks its own group and no other. One thread calls `hold`, any thread the rest.
    """

    def __init__(self) -> None:
        self._bucket: Tensor | None = None
        self._listeners: dict[str, socket.socket] = {}
        self._groups: dict[str, BroadcastGroup] = {}

    def hold(self, bucket: Tensor | None) -> None:
        """The bytes that `send` broadcasts, uint8 [n]; None: nothing."""
        self._bucket = bucket

    def open(self, name: str, engine: str) -> tuple[str, int]:
        """Listen for the engine at host `engine`, of group `name`: host and port to join at."""
        listener = listen(own_address(engine))
        self._listeners[name] = listener
        host, port = listener.getsockname()[:2]
        return host, port

    def join(self, name: str, size: int, backend: str, limit_s: float) -> None:
        """Meet the `size` - 1 ranks of the engine; `limit_s` for this and for each bucket."""
        listener = self._listeners.pop(name)
        host, port = listener.getsockname()[:2]
        self._groups[name] = BroadcastGroup(
            name, host, port, rank=0, size=size, backend=backend, limit_s=limit_s, listener=listener
        )

    def send(self, name: str) -> None:
        """Broadcast the bucket in group `name`."""
        group, bucket = self._groups[name], self._bucket
        if bucket is None:
            raise EngineError(f"The trainer has no bucket of weights to broadcast in group {name}.")
        group.broadcast(bucket.to(group.device))

    def close(self, name: str) -> None:
        """Forget a group, if it is known."""
        self._groups.pop(name, None)
        if listener := self._listeners.pop(name, None):
            listener.close()
