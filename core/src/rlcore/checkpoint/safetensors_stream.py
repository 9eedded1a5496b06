"""Safetensors written one tensor at a time: shards, their index, and checksums, in the memory of one tensor.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, JSON header, raw data).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlcore.checkpoint.report import Hashing, Report, hashing
from rlcore.checksums import checksum

DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The format's names."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Entry:
    """One tensor to come."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def entries(tensors: Iterable[tuple[str, Tensor]]) -> list[Entry]:
    """What `tensors` (on the meta device, it may be) will be when they come with values."""
    return [Entry(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]


def write_shards(
    folder: Path,
    plan: Sequence[Entry],
    tensors: Iterable[tuple[str, Tensor]],
    max_shard_bytes: int,
    advance: Callable[[int], None],
) -> Report:
    """Write `tensors`, which come as `plan` says and in its order, to `folder`.

    Shards of at most `max_shard_bytes` each (a larger tensor is one of its own), and an index where there is
    more than one. `advance` is told the bytes of each tensor that is written.
    """
    shards = list(_shards(plan, max_shard_bytes))
    report = Report()
    coming = iter(tensors)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards):
        file = folder / _name(number, len(shards))
        with hashing(file, report) as stream:
            _write_header(stream, shard)
            for entry in shard:
                name, tensor = next(coming)
                assert Entry(name, tuple(tensor.shape), tensor.dtype) == entry, "a tensor came as planned"
                report.tensors[name] = checksum(tensor)
                stream.write(_bytes(tensor))
                where[name] = file.name
                advance(entry.nbytes)
    if len(shards) > 1:
        total = sum(entry.nbytes for entry in plan)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return report


def _shards(plan: Sequence[Entry], limit: int) -> Iterator[list[Entry]]:
    shard: list[Entry] = []
    size = 0
    for entry in plan:
        if shard and size + entry.nbytes > limit:
            yield shard
            shard, size = [], 0
        shard.append(entry)
        size += entry.nbytes
    if shard:
        yield shard


def _name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _write_header(stream: Hashing, shard: Sequence[Entry]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in shard:
        place = [offset, offset + entry.nbytes]
        header[entry.name] = {
            "dtype": DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": place,
        }
        offset = place[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin aligned
    stream.write(len(text).to_bytes(8, "little") + text)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
