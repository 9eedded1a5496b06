"""`BroadcastSender`: the trainer's side of a broadcast."""

from __future__ import annotations

import socket

from torch import Tensor

from rlcore import EngineError
from rlcore_machine import listen
from rlcore_toolkit.host import own_address
from rlcore_toolkit.publishers.broadcast_group import BroadcastGroup


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
