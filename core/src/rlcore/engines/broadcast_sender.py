"""`BroadcastSender`: the trainer's side of a broadcast."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rlcore.api.errors import EngineError
from rlcore.engines.broadcast_group import BroadcastGroup
from rlcore.engines.bucket import Bucket, flatten_tensors
from rlcore.engines.publish_file import discard, save_whole, versions, written
from rlcore.network import listen, own_address

KEPT_VERSIONS = 2
"""The newest, and the one that an engine may still be starting with."""


class BroadcastSender:
    """Keeps the newest versions in host memory, and broadcasts them to engines, each in a group of its own.

    Of groups of their own, an engine that dies breaks none of the others'. `hold` is called by one thread,
    the rest by any.
    """

    def __init__(self) -> None:
        self._versions: dict[int, Mapping[str, Tensor]] = {}
        self._listeners: dict[str, socket.socket] = {}
        self._groups: dict[str, BroadcastGroup] = {}

    def hold(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Keep `tensors`, which nobody changes any more, as `version`."""
        kept = {**self._versions, version: tensors}
        self._versions = {key: kept[key] for key in sorted(kept)[-KEPT_VERSIONS:]}

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

    def send(self, name: str, version: int, buckets: tuple[Bucket, ...]) -> None:
        """Broadcast `version` in group `name`, bucket by bucket."""
        tensors = self._held(version)
        group = self._groups[name]
        for bucket in buckets:
            group.broadcast(flatten_tensors(tensors[one] for one in bucket.names).to(group.device))

    def close(self, name: str) -> None:
        """Forget a group, if it is known."""
        self._groups.pop(name, None)
        if listener := self._listeners.pop(name, None):
            listener.close()

    def save(self, root: Path, version: int) -> None:
        """Write `version` to `root`, in the place of what was written there before."""
        with written(root, version) as draft:
            save_whole(draft, self._held(version))
        for folder in versions(root):
            if folder.name != str(version):
                discard(folder)

    def _held(self, version: int) -> Mapping[str, Tensor]:
        if version not in self._versions:
            held = ", ".join(map(str, self._versions)) or "none"
            raise EngineError(f"Version {version} of the weights cannot be sent; the trainer holds {held}.")
        return self._versions[version]
