"""Weights by value over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from rlcore import EngineClient, Piece, StreamPublisher, WeightsLocation
from rlcore_sglang.bucket import payload


@dataclass(frozen=True, kw_only=True)
class TensorPublisher(StreamPublisher):
    """A train worker makes SGLang's payload of each bucket, and the driver hands it on."""

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> bytes:
        return payload([(name, tensor.cpu()) for name, tensor in tensors])

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        await client.begin_weight_update()
        checksums = await super()._send(client, location)
        await client.end_weight_update()
        return checksums

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        text = base64.b64encode(piece.content).decode()
        await client.update_from_tensor(text, version=version, flush=False)
