"""A model as names and shapes, whose values are elsewhere: streamed out of or into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rlcore.checkpoint.report import Report
from rlcore.checkpoint.safetensors_stream import Entry
from rlcore.checkpoint.stream import Reader, Sharded, Writer, Written, finish
from rlcore.checksums import checksum
from rlcore.dtypes import torch_dtype
from rlcore.megatron import fields
from rlcore.megatron.bridge import ModelBridge
from rlcore.megatron.meta import on_meta
from rlcore.megatron.saving import sharded_tensors
from rlcore.spec import ModelSpec


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
        settings = fields.split(fields.check_fields(spec.megatron)).transformer
        with on_meta():
            bridge: ModelBridge = spec.bridge.build(
                path=spec.path, dtype=torch_dtype(spec.dtype), settings=settings, value_head=False
            )
            [chunk] = bridge.build()
        sharded = sharded_tensors(chunk)
        tensors = {name: one for name, one in _tensors(chunk).items() if name in sharded}
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

    def plan(self) -> list[tuple[str, Entry]]:
        """What `export` will give, and the name of megatron's tensor that each is made of."""
        last = ""

        def noted(tensor: Tensor) -> Tensor:
            nonlocal last
            last = self.places[id(_base(tensor))][0]
            return tensor

        return [
            (last, Entry(name, tuple(tensor.shape), tensor.dtype))
            for name, tensor in self.bridge.export([self.chunk], noted)
        ]

    def export(self, checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and tensors as `checkpoint` has them.

        CheckpointError where it is damaged or of another model.
        """
        return self.bridge.export([self.chunk], _Values(self, Reader(checkpoint)))

    def load_into(self, folder: Path, report: Report, advance: Callable[[int], None], rank: int) -> Written:
        """Write the weights of the bridge's directory as files of a checkpoint into the existing `folder`.

        `report` gets the checksum of each of megatron's tensors, by megatron's names. ModelError where a
        weight is missing or misshapen. `finish` makes the files of all ranks a checkpoint.
        """
        with Writer(folder, report, rank) as writer:
            pieces = _Pieces(self, writer, report, advance)
            with torch.no_grad():
                self.bridge.load([self.chunk], pieces)
            pieces.flush()
        return writer.written


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


class _Values:
    """A `Read`: the values that a checkpoint has. The last tensor is kept, for its other views."""

    def __init__(self, shape: Shape, reader: Reader) -> None:
        self._places = shape.places
        self._reader = reader
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        base = _base(tensor)
        if self._last is None or self._last[0] is not base:
            self._last = None  # never two at a time
            self._last = base, self._reader.read(self._places[id(base)][1])
        return self._last[1].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class _Pieces:
    """A `Write`: collects the pieces of a tensor, and writes it when those of the next one come."""

    def __init__(self, shape: Shape, writer: Writer, report: Report, advance: Callable[[int], None]) -> None:
        self._places = shape.places
        self._writer, self._report, self._advance = writer, report, advance
        self._base: Tensor | None = None
        self._values = torch.empty(0)

    def __call__(self, tensor: Tensor, values: Tensor) -> None:
        base = _base(tensor)
        if base is not self._base:
            self.flush()
            self._base, self._values = base, torch.empty(base.shape, dtype=base.dtype)
        piece = self._values.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        piece.copy_(values)

    def flush(self) -> None:
        """Write what is collected."""
        if self._base is None:
            return
        name, sharded = self._places[id(self._base)]
        self._writer.write(sharded, self._values)
        self._report.tensors[name] = checksum(self._values)
        self._advance(self._values.nbytes)
        self._base, self._values = None, torch.empty(0)
