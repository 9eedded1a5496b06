"""A model as names and shapes, whose values are elsewhere: streamed out of or into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from rlcore import Checksum, ConversionReport, ModelSpec, torch_dtype
from rlcore_megatron import fields
from rlcore_megatron.mcore.bridges.bridge import ModelBridge
from rlcore_megatron.mcore.bridges.mtp import PREFIX as MTP_PREFIX
from rlcore_megatron.mcore.bridges.transfer import Read
from rlcore_megatron.mcore.checkpoint.saving import sharded_tensors
from rlcore_megatron.mcore.checkpoint.torch_dist import open_reader
from rlcore_megatron.mcore.checkpoint.torch_dist_stream import (
    Reader,
    Sharded,
    Writer,
    Written,
    finish,
    rows_of,
)
from rlcore_toolkit import TensorEntry


class _OnMeta(TorchFunctionMode):
    """megatron names the device of each tensor that it makes, so `torch.device("meta")` is not enough."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in _device_constructors():
            named["device"] = "meta"
        elif func is Tensor.to and args[0].is_meta:  # it would go to a device, where it has no values
            dtypes = [value for value in (*args[1:], *named.values()) if isinstance(value, torch.dtype)]
            args, named = (args[0], *dtypes), {}
            if not dtypes:
                return args[0]
        return func(*args, **named)


@contextmanager
def on_meta() -> Iterator[None]:
    """What is built here lies on the meta device, whatever device it asks for."""
    with _OnMeta():
        yield


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A whole model on the meta device, on the one rank of its process group.

    `places`: id of a parameter or buffer → its name, and where it lies in a checkpoint.
    """

    chunk: nn.Module
    bridge: ModelBridge
    places: Mapping[int, tuple[str, Sharded]]

    @staticmethod
    def of(spec: ModelSpec) -> Shape:
        """The model of `spec`."""
        settings = fields.split(fields.check_fields(spec.fields)).transformer
        with on_meta():
            bridge: ModelBridge = spec.bridge.build(
                path=spec.path, dtype=torch_dtype(spec.dtype), settings=settings, value_head=False
            )
            [chunk] = bridge.build()
        sharded = sharded_tensors(chunk)
        tensors = {name: tensor for name, tensor in _tensors(chunk).items() if name in sharded}
        places = {id(tensor): (name, sharded[name]) for name, tensor in tensors.items()}
        return Shape(chunk=chunk, bridge=bridge, places=places)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each weight, by megatron's names."""
        return {name: tensor.nbytes for name, tensor in _tensors(self.chunk).items()}

    def keep(self, names: Collection[str]) -> None:
        """Forget every parameter and buffer but these, of megatron's names: for one share of the model."""
        for name in self.sizes.keys() - names:
            owner, _, own = name.rpartition(".")
            setattr(self.chunk.get_submodule(owner), own, None)

    def plan(self) -> list[tuple[str, TensorEntry]]:
        """What `export` will give, and the name of megatron's tensor that each is made of."""
        last = ""

        def noted(tensor: Tensor) -> Tensor:
            nonlocal last
            last = self.places[id(_base(tensor))][0]
            return tensor

        return [
            (last, TensorEntry(name, tuple(tensor.shape), tensor.dtype))
            for name, tensor in self._export(noted)
        ]

    def export(self, checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and tensors as `checkpoint` has them.

        CheckpointError where it is damaged or of another model.
        """
        return self._export(_Values(self, Reader(checkpoint)))

    def _export(self, read: Read) -> Iterator[tuple[str, Tensor]]:
        """With the copies that published checkpoints have of what a layer for multi-token prediction shares.

        A publication goes without them: engines share the matrices as well.
        """
        copies = getattr(self.bridge, "copies", {})
        for name, tensor in self.bridge.export([self.chunk], read):
            yield name, tensor
            yield from ((copy, tensor) for copy in copies.get(name, ()))

    def load_into(
        self,
        folder: Path,
        report: ConversionReport,
        advance: Callable[[int], None],
        rank: int,
        piece_bytes: int,
    ) -> Written:
        """Write the weights of the bridge's directory as files of a checkpoint into the existing `folder`.

        `report` gets the checksum of each of megatron's tensors, by megatron's names. ModelError where a
        weight is missing or misshapen. `finish` makes the files of all ranks a checkpoint.
        """
        with Writer(folder, report, rank) as writer:
            pieces = _Pieces(self, writer, report, advance, piece_bytes)
            with torch.no_grad():
                self.bridge.load([self.chunk], pieces)
            pieces.flush()
        return writer.written


def has_mtp_layer(folder: Path) -> bool:
    """Whether the `torch_dist` checkpoint `folder` has a layer for multi-token prediction.

    CheckpointError where it is no checkpoint.
    """
    names = open_reader(folder).read_metadata().state_dict_metadata
    return any(name.startswith(MTP_PREFIX) for name in names)


def finish_weights(folder: Path, written: Sequence[Written]) -> None:
    """Make what `load_into` wrote on each rank a checkpoint of weights alone."""
    finish(folder, written, {"steps": 0, "layout": {}, "distributed_optimizer": None})


def _tensors(chunk: nn.Module) -> dict[str, Tensor]:
    kept = chunk.state_dict().keys()
    buffers = {name: buffer for name, buffer in chunk.named_buffers() if name in kept}
    return {**dict(chunk.named_parameters()), **buffers}


def _base(tensor: Tensor) -> Tensor:
    """The parameter or buffer that `tensor` is, or is a view of."""
    return tensor if tensor._base is None else tensor._base


def _row(base: Tensor) -> int:
    """Values of one of its rows."""
    return base.stride(0) if base.ndim else 1


def _rows(tensor: Tensor) -> range:
    """The rows of its base that `tensor` lies in."""
    row, first = _row(_base(tensor)), tensor.storage_offset()
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(first // row, (first + reach) // row + 1)


def _is_stack(base: Tensor, sharded: Sharded) -> bool:
    """Whether `base` is one matrix behind the other, which need not be in memory together."""
    return base.ndim == 3 and isinstance(sharded, ShardedTensor)


class _Values:
    """A `Read`: the values that a checkpoint has. What was read last is kept, for its other views."""

    def __init__(self, shape: Shape, reader: Reader) -> None:
        self._places = shape.places
        self._reader = reader
        self._base: Tensor | None = None
        self._rows = range(0)
        self._values = torch.empty(0)

    def __call__(self, tensor: Tensor) -> Tensor:
        base, wanted = _base(tensor), _rows(tensor)
        if base is not self._base or wanted.start < self._rows.start or wanted.stop > self._rows.stop:
            self._base, self._values = None, torch.empty(0)  # never two at a time
            self._base, self._rows, self._values = base, *self._read(base, wanted)
        offset = tensor.storage_offset() - self._rows.start * _row(base)
        return self._values.as_strided(tensor.size(), tensor.stride(), offset)

    def _read(self, base: Tensor, wanted: range) -> tuple[range, Tensor]:
        sharded = self._places[id(base)][1]
        if not _is_stack(base, sharded):
            return range(base.shape[0] if base.ndim else 1), self._reader.read(sharded)
        rows = self._reader.rows(sharded, wanted)
        return rows, self._reader.read(rows_of(sharded, rows))


class _Pieces:
    """A `Write`: collects the pieces of a tensor, and writes it when those of the next one come.

    Of a stack of matrices, whose pieces come in its order, it writes what makes `piece_bytes` at once.
    """

    def __init__(
        self,
        shape: Shape,
        writer: Writer,
        report: ConversionReport,
        advance: Callable[[int], None],
        piece_bytes: int,
    ) -> None:
        self._places = shape.places
        self._writer, self._report, self._advance = writer, report, advance
        self._limit = piece_bytes
        self._base: Tensor | None = None
        self._checksum: Checksum | None = None
        self._rows = range(0)
        self._values = torch.empty(0)

    def __call__(self, tensor: Tensor, values: Tensor) -> None:
        base, rows = _base(tensor), _rows(tensor)
        if base is not self._base:
            self.flush()
            self._base, self._checksum = base, Checksum(base)
            self._begin(base, 0)
        elif rows.start >= self._rows.stop:
            self._write(base)
            self._begin(base, self._rows.stop)
        assert rows.start in self._rows
        assert rows.stop <= self._rows.stop, "the matrices of a stack come in its order"
        offset = tensor.storage_offset() - self._rows.start * _row(base)
        self._values.as_strided(tensor.size(), tensor.stride(), offset).copy_(values)

    def flush(self) -> None:
        """Write what is collected."""
        if self._base is None:
            return
        self._write(self._base)
        assert self._checksum is not None
        self._report.tensors[self._places[id(self._base)][0]] = self._checksum.value
        self._base, self._values = None, torch.empty(0)

    def _begin(self, base: Tensor, first: int) -> None:
        """Collect the rows from `first` on: all of them, or of a stack as many as may be together."""
        rows = base.shape[0] if base.ndim else 1
        count = rows
        if _is_stack(base, self._places[id(base)][1]):
            count = max(1, self._limit // (_row(base) * base.element_size()))
        self._rows = range(first, min(first + count, rows))
        self._values = torch.empty(0)  # never two at a time
        self._values = torch.empty((len(self._rows), *base.shape[1:]) if base.ndim else (), dtype=base.dtype)

    def _write(self, base: Tensor) -> None:
        sharded = self._places[id(base)][1]
        is_whole = self._values.shape == base.shape
        self._writer.write(sharded if is_whole else rows_of(sharded, self._rows), self._values)
        assert self._checksum is not None
        self._checksum.add(self._values)
        self._advance(self._values.nbytes)
