"""`torch_dist` checkpoints one tensor at a time: what `torch_dist` reads and writes whole."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreLoadPlanner,
    MCoreSavePlanner,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load

from rlcore import ConversionReport
from rlcore_megatron.mcore.checkpoint import torch_dist
from rlcore_toolkit import HashingFile, hashing_file

Sharded: TypeAlias = Any
"""How megatron says where a parameter lies in a checkpoint: a ShardedTensor, or a factory of some."""

FILE_BYTES = 5 * 1024**3


def rows_of(sharded: Sharded, rows: range) -> Sharded:
    """A run of what `sharded` describes, along the first axis of its tensor."""
    front = sharded.prepend_axis_num
    data = sharded.data[rows.start : rows.stop]
    offset = list(sharded.global_offset)
    offset[front] += rows.start
    return dataclasses.replace(
        sharded,
        data=data,
        local_shape=tuple(data.shape),
        global_offset=tuple(offset),
        axis_fragmentations=None,  # of runs that need not be equal
    )


class Reader:
    """The tensors of a checkpoint, read when they are asked for, by this process alone."""

    def __init__(self, folder: Path) -> None:
        """CheckpointError where `folder` is no checkpoint or may not be read."""
        self._folder = folder
        self._reader = torch_dist.open_reader(folder)

    def rows(self, sharded: Sharded, wanted: range) -> range:
        """The rows that were written together with those `wanted`; all, where these were not."""
        entry = self._reader.read_metadata().state_dict_metadata.get(sharded.key)
        front = sharded.prepend_axis_num
        for chunk in getattr(entry, "chunks", ()):
            first = chunk.offsets[front] - sharded.global_offset[front]
            rows = range(first, first + chunk.sizes[front])
            is_here = tuple(chunk.offsets[:front]) == tuple(sharded.global_offset[:front])
            if is_here and rows.start <= wanted.start and wanted.stop <= rows.stop:
                return rows
        return range(sharded.data.shape[0])

    def read(self, sharded: Sharded) -> Tensor:
        """The values of a tensor that `sharded` describes; its own data are not looked at.

        CheckpointError where they are missing, damaged or of another shape.
        """
        empty = torch.empty(sharded.data.shape, dtype=sharded.data.dtype)
        whole = dataclasses.replace(sharded, data=empty)
        built = whole.build() if isinstance(whole, ShardedTensorFactory) else whole
        pieces = _pieces(built)
        planner = MCoreLoadPlanner(
            shapes_validation_sharded_tensors=[piece for piece in pieces if not piece.allow_shape_mismatch],
            allow_shape_mismatch_sharded_tensors={
                piece.key: piece for piece in pieces if piece.allow_shape_mismatch
            },
        )
        with torch_dist.reading(self._folder):
            load(_by_key(pieces, True), storage_reader=self._reader, planner=planner, no_dist=True)
        if not isinstance(whole, ShardedTensorFactory):
            return empty
        value = whole.merge_fn(dict_list_map_outplace(lambda leaf: leaf.data, built))
        assert isinstance(value, Tensor)
        return value


@dataclass(frozen=True)
class Written:
    """What a `Writer` put into its files: the tensors' pieces, and the file and offset of each."""

    items: Sequence[WriteItem]
    places: Mapping[MetadataIndex, _StorageInfo]


class Writer:
    """Files of a checkpoint in the making, of about `FILE_BYTES`; a context, which closes the last one.

    `rank`: of the process among those that write the checkpoint together, each its own files.
    """

    def __init__(self, folder: Path, report: ConversionReport, rank: int) -> None:
        self._folder = folder
        self._report = report
        self._rank = rank
        self._items: list[WriteItem] = []
        self._places: dict[MetadataIndex, _StorageInfo] = {}
        self._stack = ExitStack()
        self._stream: HashingFile | None = None
        self._count = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, sharded: Sharded, value: Tensor) -> None:
        """Append `value`, which lies in the whole as `sharded` says."""
        whole = dataclasses.replace(sharded, data=value)
        built = whole.build() if isinstance(whole, ShardedTensorFactory) else whole
        planner = _planner()
        planner.set_up_planner(_by_key(_pieces(built), False), None, True)
        for item in planner.create_local_plan().items:
            data = planner.resolve_data(item).detach()
            if data.nbytes < data.untyped_storage().nbytes():
                data = data.clone()  # a view would save its base
            stream, name = self._file()
            begin = stream.size
            torch.save(data, stream)  # type: ignore[arg-type]  # of a file it asks for write and flush
            self._places[item.index] = _StorageInfo(name, begin, stream.size - begin)
            self._items.append(item)

    def _file(self) -> tuple[HashingFile, str]:
        if self._stream is None or self._stream.size >= FILE_BYTES:
            self._stack.close()
            self._count += 1
            file = self._folder / self._name()
            self._stream = self._stack.enter_context(hashing_file(file, self._report))
        return self._stream, self._name()

    def _name(self) -> str:
        return f"__{self._rank}_{self._count - 1}.distcp"

    @property
    def written(self) -> Written:
        """All of it so far."""
        return Written(self._items, self._places)


def finish(folder: Path, written: Sequence[Written], common: Mapping[str, Any]) -> None:
    """Write what makes the files of all writers a checkpoint; `common` holds the plain values."""
    planner = _planner()
    planner.set_up_planner({}, None, True)
    _, metadata = planner.create_global_plan([SavePlan(items=list(writer.items)) for writer in written])
    metadata.storage_data = {index: place for writer in written for index, place in writer.places.items()}
    metadata.version = CURRENT_DCP_VERSION
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    torch_dist.write_common(folder, dict(common))


def _pieces(built: Any) -> list[ShardedTensor]:
    """What a parameter is saved as. A layer's axis in front becomes an axis of size 1 of the data.

    megatron would describe it as a tensor of which this process must hold every layer at once.
    """
    pieces = []
    for leaf in nested_values({"": built}):
        front = leaf.prepend_axis_num
        data, shape = leaf.data[(None,) * front], (1,) * front + tuple(leaf.local_shape)
        pieces.append(dataclasses.replace(leaf, data=data, local_shape=shape, prepend_axis_num=0))
    return pieces


def _by_key(pieces: Sequence[ShardedTensor], is_loading: bool) -> dict[str, Any]:
    """The form that torch.distributed.checkpoint takes; data are read or written in place."""
    keyed: dict[str, list[ShardedTensor]] = {}
    for piece in pieces:
        keyed.setdefault(piece.key, []).append(piece)
    return dict(mcore_to_pyt_state_dict(keyed, is_loading))


def _planner() -> Any:
    return MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
