"""Safetensors written one tensor at a time: shards, their index, and checksums, in the memory of one tensor.

Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, JSON header, raw data).
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from rlcore import DTYPE_NAMES, ConversionReport, ProgressCallback, checksum, write_atomically
from rlcore_toolkit.hf_directory import MAX_SHARD_BYTES, carry_files, check_new, check_space
from rlcore_toolkit.publishers.bucket import grouped


class HashingFile:
    """A file to append to, and its digest."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`, whose items are bytes."""
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)

    def flush(self) -> None:
        """Does nothing; `torch.save` calls it."""
        self._stream.flush()


@contextmanager
def hashing_file(file: Path, report: ConversionReport) -> Iterator[HashingFile]:
    """A new `file` to append to; `report` has its digest afterwards."""
    with file.open("xb") as stream:
        out = HashingFile(stream)
        yield out
    report.files[file.name] = {"bytes": out.size, "sha256": out.digest.hexdigest()}


DTYPES = {
    **{torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"},
}
"""dtype → its name in the format."""

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorEntry:
    """A tensor that will be written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True)
class SafetensorsShard:
    """A file that will be written, with its tensors in order."""

    file: str
    entries: tuple[TensorEntry, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(entry.nbytes for entry in self.entries)


def plan_shards(plan: Iterable[TensorEntry], limit: int) -> list[SafetensorsShard]:
    """The tensors of `plan`, in order, divided into files of at most `limit` bytes.

    A larger tensor gets its own file.
    """
    parts = list(grouped(plan, lambda entry: entry.nbytes, limit))
    return [SafetensorsShard(_name(number, len(parts)), tuple(part)) for number, part in enumerate(parts)]


def write_shards(
    folder: Path,
    wanted: Sequence[SafetensorsShard],
    tensors: Iterable[tuple[str, Tensor]],
    advance: Callable[[int], None],
) -> ConversionReport:
    """Write the files `wanted` into `folder`.

    `tensors` are all tensors in the order of the whole plan; those of other files are passed over. `advance`
    gets the bytes of each tensor that is written.
    """
    report = ConversionReport()
    names = {entry.name for shard in wanted for entry in shard.entries}
    coming = (item for item in tensors if item[0] in names)
    for shard in wanted:
        with hashing_file(folder / shard.file, report) as stream:
            _write_header(stream, shard)
            for entry in shard.entries:
                name, tensor = next(coming)
                assert TensorEntry(name, tuple(tensor.shape), tensor.dtype) == entry, (
                    "a tensor came as planned"
                )
                report.tensors[name] = checksum(tensor)
                stream.write(_bytes(tensor))
                advance(entry.nbytes)
    return report


def write_shard_index(folder: Path, whole: Sequence[SafetensorsShard]) -> None:
    """Write the index that says which tensor is in which file, if there is more than one file."""
    if len(whole) == 1:
        return
    where = {entry.name: shard.file for shard in whole for entry in shard.entries}
    total = sum(shard.nbytes for shard in whole)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def write_directory(
    source: Path,
    out: Path,
    entries: Sequence[TensorEntry],
    tensors: Iterable[tuple[str, Tensor]],
    dtype: str,
    advance: ProgressCallback,
    *,
    limit: int = MAX_SHARD_BYTES,
    without: Collection[str] = (),
) -> ConversionReport:
    """Write the new directory `out`, whole or not at all: `tensors`, and what lies beside those of `source`.

    `entries`: the tensors that come, in their order, one in memory at a time; `dtype`: of the run ("bf16");
    `limit`: bytes of a file; `without`: as of `carry_files`. CheckpointError where `out` exists or has no
    room.
    """
    check_new(out)
    files = plan_shards(entries, limit)
    total = sum(file.nbytes for file in files)
    check_space(out, total)
    with write_atomically(out, marked=False) as folder:
        report = write_shards(folder, files, tensors, lambda more: advance(more, total))
        write_shard_index(folder, files)
        carry_files(source, folder, DTYPE_NAMES[dtype], without=without)
        report.write(folder)
    return report


def _name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _write_header(stream: HashingFile, shard: SafetensorsShard) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in shard.entries:
        place = [offset, offset + entry.nbytes]
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": place}
        offset = place[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin aligned
    stream.write(len(text).to_bytes(8, "little") + text)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
