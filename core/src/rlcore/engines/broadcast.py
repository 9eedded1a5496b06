"""`BroadcastPublisher`: weights by NCCL or gloo, straight from the trainer's memory to the engine's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from torch import Tensor

from rlcore.engines.broadcast_sender import BroadcastSender
from rlcore.engines.bucket import buckets
from rlcore.engines.client import EngineClient, together
from rlcore.engines.publish import FilePublisher
from rlcore.engines.publish_file import WeightsLocation, ready, summed

Call = Literal["open", "join", "send", "close", "save"]
"""What the driver asks of the trainer's `BroadcastSender`."""
Ask = Callable[..., Awaitable[Any]]
"""`ask(call, *arguments)`: calls the trainer's `BroadcastSender` beside its training."""


@dataclass(kw_only=True)
class Link:
    """The driver's way to the trainer, and the group of each server that it has met."""

    ask: Ask | None = None
    groups: dict[EngineClient, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BroadcastPublisher(FilePublisher):
    """For engines whose host reaches the trainer's.

    The driver asks the server to receive a bucket. Meanwhile the trainer's copy of this broadcasts it, by its
    `BroadcastSender`. `backend`: nccl or gloo. `limit_s`: for a server to join, and for a bucket. `root` is
    used for `directory` alone.
    """

    bucket_bytes: int
    backend: str
    limit_s: float
    sender: BroadcastSender = field(default_factory=BroadcastSender)
    link: Link = field(default_factory=Link)

    def connect(self, ask: Ask) -> None:
        """In the driver: how it reaches the trainer."""
        self.link.ask = ask

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        values = {name: value.clone() for name, value in ready(tensors, self.dtype).items()}
        self.sender.hold(values, version)
        return WeightsLocation(
            directory=str(self.root / str(version)),
            version=version,
            checksums=summed(values),
            buckets=buckets(values, self.bucket_bytes),
        )

    async def directory(self, location: WeightsLocation) -> str:
        if not Path(location.directory).is_dir():
            await self._ask("save", self.root, location.version)
        return location.directory

    async def _send(self, client: EngineClient, location: WeightsLocation) -> None:
        if client not in self.link.groups:
            self.link.groups[client] = await self._join(client)
        name = self.link.groups[client]
        try:
            await client.begin_weight_update()
            sending = self._ask("send", name, location.version, location.buckets)
            await together([self._receive(client, name, location), sending])
            await client.end_weight_update()
        except BaseException:
            await self._leave(client)
            raise

    async def _receive(self, client: EngineClient, name: str, location: WeightsLocation) -> None:
        for bucket in location.buckets:
            last = bucket is location.buckets[-1]
            await client.update_from_broadcast(name, bucket, version=location.version if last else None)

    async def _join(self, client: EngineClient) -> str:
        """A group of the trainer (rank 0) and the server, whose name nothing else has."""
        name = f"rlcore-{uuid4().hex[:12]}"
        size = 1 + (await client.capabilities()).tensor_ranks
        host, port = await self._ask("open", name, urlsplit(client.url).hostname)
        entering = client.join_weights_group(name, host, port, size=size, backend=self.backend)
        try:
            await together([entering, self._ask("join", name, size, self.backend, self.limit_s)])
        except BaseException:
            await self._ask("close", name)
            raise
        return name

    async def _leave(self, client: EngineClient) -> None:
        """The next publication meets the server anew."""
        await self._ask("close", self.link.groups.pop(client))

    async def _ask(self, call: Call, *arguments: Any) -> Any:
        assert self.link.ask is not None, "connected before the first publication"
        return await self.link.ask(call, *arguments)
