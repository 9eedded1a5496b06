"""New weights to engines, by a publisher, in one process: no trainer, no driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from rlcore import EngineClient, Publisher, WeightsLocation
from rlcore.engines.stream import Pieces, WeightStream
from rlcore_machine import together


async def publish(
    publisher: Publisher,
    clients: Sequence[EngineClient],
    tensors: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    keep_cache: bool = False,
    is_idle: bool = False,
) -> WeightsLocation:
    """Write and load in one process. Returns where the weights lie, with their checksums."""
    load = partial(publisher.load, keep_cache=keep_cache, is_idle=is_idle)
    named = list(tensors)
    location = await asyncio.to_thread(publisher.write, named, version, whole=publisher.is_streamed)
    if publisher.is_streamed:
        made = publisher.pieces(named, sends=True, tells=True)

        async def source(_ranks: Sequence[int]) -> Pieces:
            while (piece := await asyncio.to_thread(next, made, None)) is not None:
                yield replace(piece, by_rank={0: piece.content})

        stream = WeightStream(source, len(clients))
        shares = [stream.share() for _ in clients]
        loads = [
            load(client, replace(location, pieces=share.pieces()))
            for client, share in zip(clients, shares, strict=True)
        ]
        try:
            await together(loads)
        finally:
            for share in shares:
                share.close()
            await stream.close()
    else:
        await together(load(client, location) for client in clients)
    return location
