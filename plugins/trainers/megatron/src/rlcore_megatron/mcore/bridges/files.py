"""The safetensors of a Hugging Face directory: tensors, rows of them, and what quantized ones stand for."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlcore import FP8_SCALE_SUFFIX, Fp8Block, ModelError
from rlcore_megatron.mcore.bridges.int4 import PACKED, SCALE, SHAPE, dequantize_int4
from rlcore_megatron.mcore.bridges.mxfp4 import BLOCKS, SCALES, dequantize_mxfp4
from rlcore_megatron.mcore.bridges.nesting import JoinedExpert
from rlcore_toolkit import FP8_DTYPE, dequantize_fp8


class SafetensorsDir:
    """The safetensors of a Hugging Face directory, whatever their number and index.

    `block`: of its FP8 weights, which come out as fp32, as those in INT4 do.
    """

    def __init__(self, path: Path, block: Fp8Block | None = None) -> None:
        self.path = path
        self._block = block
        self._stack = ExitStack()
        self._handles: dict[str, Any] = {}

    def __enter__(self) -> SafetensorsDir:
        files = sorted(self.path.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{self.path} holds no *.safetensors file.")
        for file in files:
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file} cannot be read as safetensors: {error}.") from error
            self._handles.update(dict.fromkeys(handle.keys(), handle))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._handles.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._handles.keys()

    def __getitem__(self, name: str) -> Tensor:
        if name + PACKED in self._handles:
            return self._of_int4(name)
        if name not in self._handles:
            return self._of_joined(name)
        tensor = self._handles[name].get_tensor(name)
        assert isinstance(tensor, Tensor)
        return self._dequantized(name, tensor) if tensor.dtype == FP8_DTYPE else tensor

    def _of_int4(self, name: str) -> Tensor:
        try:
            return dequantize_int4(*(self[name + suffix] for suffix in (PACKED, SCALE, SHAPE)))
        except ValueError as error:
            raise ModelError(f"{self.path}: the INT4 weight {name!r} has {error}.") from error

    def _of_joined(self, name: str) -> Tensor:
        """An expert's matrix out of the tensor of all experts of its layer."""
        joined = JoinedExpert.of(name)
        if joined is None or joined.name not in self._handles:
            raise ModelError(f"{self.path} lacks the weight {name!r} that its config.json calls for.")
        whole = self._handles[joined.name].get_slice(joined.name)
        shape = whole.get_shape()
        if len(shape) != 3 or joined.number >= shape[0]:
            raise ModelError(f"{self.path}: {joined.name!r} is {tuple(shape)}, which does not hold {name!r}.")
        matrix = whole[joined.number, joined.rows(shape)]
        assert isinstance(matrix, Tensor)
        return matrix

    def row(self, name: str, place: int) -> Tensor:
        """The part of the tensor `name` at `place` of its first axis; of MXFP4 what it stands for, in fp32.

        MXFP4 has inputs and outputs in the other order.
        """
        if name in self or name + BLOCKS not in self:
            return self._row(name, place)
        blocks, scales = (self._row(name + suffix, place) for suffix in (BLOCKS, SCALES))
        try:
            return dequantize_mxfp4(blocks, scales).T
        except ValueError as error:
            raise ModelError(f"{self.path}: the MXFP4 weight {name!r} has {error}.") from error

    def _row(self, name: str, place: int) -> Tensor:
        if name not in self:
            return self[name]  # which says that it is missing
        rows = self._handles[name].get_slice(name)
        if place >= rows.get_shape()[0]:
            raise ModelError(f"{self.path}: {name!r} has only {rows.get_shape()[0]} experts.")
        part = rows[place]
        assert isinstance(part, Tensor)
        return part

    def _dequantized(self, name: str, weight: Tensor) -> Tensor:
        if self._block is None:
            raise ModelError(f"{self.path}: {name!r} is FP8, but its config.json says no weight_block_size.")
        of_scales = name + FP8_SCALE_SUFFIX
        if of_scales not in self:
            raise ModelError(f"{self.path} lacks {of_scales!r}, the scales of the FP8 weight {name!r}.")
        try:
            return dequantize_fp8(weight, self[of_scales], self._block)
        except ValueError as error:
            raise ModelError(f"{self.path}: {of_scales!r} has {error}.") from error
