"""Weights by value over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from rlcore import EngineClient, FilePublisher, WeightsLocation
from rlcore_sglang.bucket import payloads


@dataclass(frozen=True, kw_only=True)
class TensorPublisher(FilePublisher):
    """In buckets, from a driver that sees `root`."""

    bucket_bytes: int

    async def _send(self, client: EngineClient, location: WeightsLocation) -> None:
        await client.begin_weight_update()
        previous: str | None = None
        for payload in payloads(location.file, self.bucket_bytes):
            if previous is not None:
                await client.update_from_tensor(previous, version=None)
            previous = payload
        assert previous is not None, "a model has weights"
        await client.update_from_tensor(previous, version=location.version, flush=False)
        await client.end_weight_update()
