"""A model as names and shapes, whose values are elsewhere: streamed out of or into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rlcore.checkpoint.report import Report
from rlcore.checkpoint.stream import Reader, Sharded, Writer
from rlcore.checksums import checksum
from rlcore.megatron import fields
from rlcore.megatron.bridge import ModelBridge
from rlcore.megatron.build import DTYPES
from rlcore.megatron.meta import on_meta
from rlcore.megatron.saving import sharded_tensors
from rlcore.megatron.transfer import held
from rlcore.spec import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A whole model on the meta device, on the one rank of its process group."""

    chunk: nn.Module
    bridge: ModelBridge

    @staticmethod
    def of(spec: ModelSpec) -> Shape:
        """The model of `spec`."""
        settings = fields.split(fields.check_fields(spec.megatron)).transformer
        with on_meta():
            bridge: ModelBridge = spec.bridge.build(
                path=spec.path, dtype=DTYPES[spec.dtype], settings=settings, value_head=False
            )
            [chunk] = bridge.build()
        return Shape(chunk=chunk, bridge=bridge)

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def export(self, checkpoint: Path | None = None) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face names and tensors: on the meta device, or as `checkpoint` has them.

        CheckpointError where it is damaged or of another model.
        """
        if checkpoint is None:
            return self.bridge.export([self.chunk], held)
        return self.bridge.export([self.chunk], _Values(self, Reader(checkpoint)))

    def load_into(self, folder: Path, report: Report, advance: Callable[[int], None]) -> None:
        """Write the weights of the bridge's directory as a checkpoint into the existing `folder`.

        `report` gets the checksum of each of megatron's tensors, by megatron's names. ModelError where a
        weight is missing or misshapen.
        """
        with Writer(folder, report) as writer:
            pieces = _Pieces(self, writer, report, advance)
            with torch.no_grad():
                self.bridge.load([self.chunk], pieces)
            pieces.flush()
            writer.finish({"steps": 0, "layout": {}, "distributed_optimizer": None})

    def places(self) -> Mapping[int, tuple[str, Sharded]]:
        """id of a tensor → its name, and where it lies in a checkpoint."""
        sharded = sharded_tensors(self.chunk)
        return {
            id(tensor): (name, sharded[name]) for name, tensor in self._tensors().items() if name in sharded
        }

    def _tensors(self) -> dict[str, Tensor]:
        kept = self.chunk.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.chunk.named_buffers() if name in kept}
        return {**dict(self.chunk.named_parameters()), **buffers}


def _base(tensor: Tensor) -> Tensor:
    """The parameter or buffer that `tensor` is, or is a view of."""
    return tensor if tensor._base is None else tensor._base


class _Values:
    """A `Read`: the values that a checkpoint has. The last tensor is kept, for its other views."""

    def __init__(self, shape: Shape, reader: Reader) -> None:
        self._places = shape.places()
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
        self._places = shape.places()
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
