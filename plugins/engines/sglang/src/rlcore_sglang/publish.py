"""Weights for `/update_weights_from_tensor`: by handle to the trainer's memory, or by value over HTTP."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from rlcore import EngineClient, Piece, WeightsLocation
from rlcore_sglang.bucket import payload
from rlcore_sglang.shared_bucket import SharedBucket
from rlcore_toolkit import StreamPublisher


@dataclass(frozen=True, kw_only=True)
class TensorPublisher(StreamPublisher):
    """A train worker makes SGLang's payload of each bucket, and the driver hands it on.

    Where each rank of the engine is on the device of a train worker (`sources`), that worker's payload is a
    handle to its memory. Otherwise the first worker sends all bytes. `readers`: see `feeding`; 0: by value.
    """

    readers: int = 0
    shared: SharedBucket = field(default_factory=SharedBucket)

    def feeding(self, readers: int) -> TensorPublisher:
        return replace(self, readers=readers, shared=SharedBucket())

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> bytes:
        if not self.readers:
            return payload([(name, tensor.cpu()) for name, tensor in tensors])
        flat = self.shared.fill([tensor for _, tensor in tensors])
        return payload(tensors, self.shared.handle(flat, self.readers))

    def _drop(self) -> None:
        self.shared.free()

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        await client.begin_weight_update()
        checksums = await super()._send(client, location)
        await client.end_weight_update()
        return checksums

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        ranks = (await client.capabilities()).tensor_ranks
        payloads = [_text(piece.by_rank[rank]) for rank in self.sources] or [_text(piece.content)] * ranks
        assert len(payloads) == ranks, f"{len(payloads)} payloads for {ranks} ranks"
        body = {
            "serialized_named_tensors": payloads,
            "load_format": "flattened_bucket",
            "flush_cache": False,
            **({} if version is None else {"weight_version": str(version)}),
        }
        await client.update("/update_weights_from_tensor", body)


def _text(content: Any) -> str:
    return base64.b64encode(content).decode()
