"""SGLang's ways of new weights: by handle to the trainer's memory or by value over HTTP, and adapters."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore import (
    ADAPTER_CONFIG,
    AdapterSpec,
    EngineClient,
    Piece,
    WeightForms,
    WeightsLocation,
    policy_of,
)
from rlcore_sglang.adapters import by_policy
from rlcore_sglang.bucket import payload
from rlcore_sglang.client import SglangClient
from rlcore_sglang.shared_bucket import SharedBucket
from rlcore_toolkit import DiskPublisher, FilePublisher, StreamPublisher, adapter_place


@dataclass(frozen=True, kw_only=True)
class SglangDiskPublisher(DiskPublisher):
    """A whole model directory; of an adapter, a directory of PEFT."""

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, *, whole: bool = False
    ) -> WeightsLocation:
        if not self.forms.overlays:
            return super().write(tensors, version, whole=whole)
        specs, locations = by_policy(self.forms.overlays), {}
        for policy, named in groupby(tensors, lambda one: policy_of(one[0])[0]):
            own = ((policy_of(name)[1], tensor) for name, tensor in named)
            at = replace(self, root=self.root / policy)
            location = FilePublisher.write(at, own, version, whole=whole)  # without config and tokenizer
            config = _config(specs[policy], location.checksums)
            (Path(location.directory) / ADAPTER_CONFIG).write_text(json.dumps(config))
            locations[policy] = location
        return locations[""]

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if not self.forms.overlays:
            return await super()._send(client, location)
        assert isinstance(client, SglangClient)
        at = Path(location.directory)
        paths = {name: {"lora_path": str(at.parent / name / at.name)} for name in self.forms.overlays}
        await client.load_adapters("/load_lora_adapter", paths, location.version)
        return location.checksums


def _config(adapter: AdapterSpec, names: Iterable[str]) -> Mapping[str, Any]:
    """What SGLang reads of an `adapter_config.json`. `names`: of the tensors, of which B has the scale."""
    ends = {adapter_place(name)[0].rpartition(".")[2] for name in names}
    return {
        "peft_type": "LORA",
        "r": adapter.rank,
        "lora_alpha": adapter.rank,
        "target_modules": sorted(ends),
    }


@dataclass(frozen=True, kw_only=True)
class TensorPublisher(StreamPublisher):
    """A train worker makes SGLang's payload of each bucket, and the driver hands it on. An adapter is one.

    Where each rank of the engine is on the device of a train worker (`sources`), that worker's payload is a
    handle to its memory. Otherwise the first worker sends all bytes. `readers`: see `feeding`; 0: by value.
    """

    readers: int = 0
    shared: SharedBucket = field(default_factory=SharedBucket)

    def holding(self, forms: WeightForms) -> TensorPublisher:
        size = sys.maxsize if forms.overlays else self.bucket_bytes
        return replace(self, forms=forms, bucket_bytes=size)

    def feeding(self, readers: int) -> TensorPublisher:
        return replace(self, readers=readers, shared=SharedBucket())

    def _keep(self, tensors: Sequence[tuple[str, Tensor]]) -> bytes | Mapping[str, Any]:
        if self.forms.overlays:
            by_policy: dict[str, list[tuple[str, Tensor]]] = {}
            for name, tensor in tensors:
                policy, own = policy_of(name)
                by_policy.setdefault(policy, []).append((own, tensor.cpu()))
            return {
                policy: (payload(values), {name: _sha256(value) for name, value in values})
                for policy, values in by_policy.items()
            }
        if not self.readers:
            return payload([(name, tensor.cpu()) for name, tensor in tensors])
        flat = self.shared.fill([tensor for _, tensor in tensors])
        return payload(tensors, self.shared.handle(flat, self.readers))

    def _drop(self) -> None:
        self.shared.free()

    async def _send(self, client: EngineClient, location: WeightsLocation) -> Mapping[str, str]:
        if self.forms.overlays:
            return await super()._send(client, location)
        await client.begin_weight_update()
        checksums = await super()._send(client, location)
        await client.end_weight_update()
        return checksums

    async def _take(self, client: EngineClient, piece: Piece, version: int | None) -> None:
        ranks = (await client.capabilities()).tensor_ranks
        if self.forms.overlays:
            await self._take_adapters(client, piece, version, ranks)
            return
        payloads = [_text(piece.by_rank[rank]) for rank in self.sources] or [_text(piece.content)] * ranks
        assert len(payloads) == ranks, f"{len(payloads)} payloads for {ranks} ranks"
        body = {
            "serialized_named_tensors": payloads,
            "load_format": "flattened_bucket",
            "flush_cache": False,
            **({} if version is None else {"weight_version": str(version)}),
        }
        await client.update("/update_weights_from_tensor", body)

    async def _take_adapters(
        self, client: EngineClient, piece: Piece, version: int | None, ranks: int
    ) -> None:
        assert isinstance(client, SglangClient)
        assert version is not None, "an adapter is one bucket"
        specs = by_policy(self.forms.overlays)
        contents = piece.by_rank[self.sources[0]] if self.sources else piece.content
        bodies = {
            policy: {
                "config_dict": _config(specs[policy], sums),
                "serialized_named_tensors": [_text(content)] * ranks,
                "load_format": "flattened_bucket",
                "expected_checksums": sums,
            }
            for policy, (content, sums) in contents.items()
        }
        await client.load_adapters("/load_lora_adapter_from_tensors", bodies, version)


def _sha256(value: Tensor) -> str:
    return hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def _text(content: Any) -> str:
    return base64.b64encode(content).decode()
