"""`BroadcastPublisher`: weights by NCCL or gloo, straight from the trainer's memory to the engine's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from torch import Tensor

from rlcore import AskTrainer, EngineClient, Piece, WeightsLocation
from rlcore_machine import LOOPBACK, together
from rlcore_toolkit.publishers.broadcast_group import BroadcastSender
from rlcore_toolkit.publishers.bucket import flatten_tensors
from rlcore_toolkit.publishers.stream import StreamPublisher

Call = Literal["open", "join", "send", "close"]
"""The calls that the driver makes to the trainer's `BroadcastSender`."""


@dataclass(kw_only=True)
class Link:
    """The driver's way to the trainer, and the group of each server that it has met.

    `here`: the address of this host in the cluster, for a trainer on another one.
    """

    ask: AskTrainer | None = None
    here: str | None = None
    groups: dict[EngineClient, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BroadcastPublisher(StreamPublisher):
    """For engines whose host reaches the trainer's.

    The driver asks the server to receive a bucket. Meanwhile the trainer's copy of this publisher broadcasts
    it by its `BroadcastSender`. `backend`: nccl or gloo. `limit_s`: the most seconds for a server to join,
    and for each bucket.
    """

    backend: str
    limit_s: float
    sender: BroadcastSender = field(default_factory=BroadcastSender)
    link: Link = field(default_factory=Link)

    def connect(self, ask: AskTrainer, here: str | None = None) -> None:
        """The driver asks the trainer's `BroadcastSender` through `answer`."""
        self.link.ask, self.link.here = ask, here

    def answer(self, call: str, *arguments: Any) -> Any:
        """Call the `BroadcastSender`."""
        return getattr(self.sender, call)(*arguments)

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self.sender.hold(None)  # every engine has the bucket before, whose memory is free for this one
        self.sender.hold(flatten_tensors(tensor for _, tensor in tensors))

    def _drop(self) -> None:
        self.sender.hold(None)

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if client not in self.link.groups:
            self.link.groups[client] = await self._join(client)
        try:
            await client.begin_weight_update()
            checksums = await super()._send(client, location)
            await client.end_weight_update()
        except BaseException:
            await self._leave(client)
            raise
        return checksums

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        name = self.link.groups[client]
        bucket = piece.bucket
        body: dict[str, Any] = {"names": bucket.names, "dtypes": bucket.dtypes, "shapes": bucket.shapes}
        body |= {"group_name": name, "load_format": "flattened_bucket", "flush_cache": False}
        body |= {} if version is None else {"weight_version": str(version)}
        receiving = client.update("/update_weights_from_distributed", body)
        await together([receiving, self._ask("send", name)])

    async def _join(self, client: EngineClient) -> str:
        """Make a group of the trainer (rank 0) and the server, under a unique name."""
        name = f"rlcore-{uuid4().hex[:12]}"
        size = 1 + (await client.capabilities()).tensor_ranks
        engine = urlsplit(client.url).hostname
        is_beside = engine == LOOPBACK  # this process, and perhaps not the trainer
        host, port = await self._ask("open", name, (self.link.here or engine) if is_beside else engine)
        body = {"master_address": host, "master_port": port, "group_name": name, "backend": self.backend}
        body |= {"rank_offset": 1, "world_size": size}  # the trainer is rank 0
        entering = client.update("/init_weights_update_group", body)
        try:
            await together([entering, self._ask("join", name, size, self.backend, self.limit_s)])
        except BaseException:
            await self._ask("close", name)
            raise
        return name

    async def _leave(self, client: EngineClient) -> None:
        """Forget the group. The next publication makes a new one."""
        await self._ask("close", self.link.groups.pop(client))

    async def _ask(self, call: Call, *arguments: Any) -> Any:
        assert self.link.ask is not None, "connected before the first publication"
        return await self.link.ask(call, *arguments)
