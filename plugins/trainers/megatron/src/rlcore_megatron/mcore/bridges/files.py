"""The safetensors of a Hugging Face directory: tensors, rows of them, and what quantized ones stand for."""

from pathlib import Path

from torch import Tensor

from rlcore import FP8_SCALE_SUFFIX, ModelError
from rlcore_megatron.mcore.bridges.int4 import PACKED, SCALE, SHAPE, dequantize_int4
from rlcore_megatron.mcore.bridges.mxfp4 import BLOCKS, SCALES, dequantize_mxfp4
from rlcore_megatron.mcore.bridges.nesting import JoinedExpert
from rlcore_toolkit import FP8_DTYPE, SafetensorsFiles


class SafetensorsDir:
    """The `files` of a Hugging Face directory; weights in FP8 and INT4 come out as fp32."""

    def __init__(self, path: Path) -> None:
        self.path, self.files = path, SafetensorsFiles.of(path)

    def __getitem__(self, name: str) -> Tensor:
        if name + PACKED in self.files:
            return self._of_int4(name)
        if name not in self.files:
            return self._of_joined(name)
        tensor = self.files.full(name)
        if tensor.dtype != FP8_DTYPE:
            return tensor
        if self.files.block is None:
            raise ModelError(f"{self.path}: {name!r} is FP8, but its config.json says no weight_block_size.")
        raise ModelError(
            f"{self.path} lacks {name + FP8_SCALE_SUFFIX!r}, the scales of the FP8 weight {name!r}."
        )

    def _of_int4(self, name: str) -> Tensor:
        try:
            return dequantize_int4(*(self[name + suffix] for suffix in (PACKED, SCALE, SHAPE)))
        except ValueError as error:
            raise ModelError(f"{self.path}: the INT4 weight {name!r} has {error}.") from error

    def _of_joined(self, name: str) -> Tensor:
        """An expert's matrix out of the tensor of all experts of its layer."""
        joined = JoinedExpert.of(name)
        if joined is None or joined.name not in self.files:
            raise ModelError(f"{self.path} lacks the weight {name!r} that its config.json calls for.")
        [whole] = self.files.parts(joined.name)
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
        if name in self.files or name + BLOCKS not in self.files:
            return self._row(name, place)
        blocks, scales = (self._row(name + suffix, place) for suffix in (BLOCKS, SCALES))
        try:
            return dequantize_mxfp4(blocks, scales).T
        except ValueError as error:
            raise ModelError(f"{self.path}: the MXFP4 weight {name!r} has {error}.") from error

    def _row(self, name: str, place: int) -> Tensor:
        if name not in self.files:
            return self[name]  # which says that it is missing
        [rows] = self.files.parts(name)
        if place >= rows.get_shape()[0]:
            raise ModelError(f"{self.path}: {name!r} has only {rows.get_shape()[0]} experts.")
        part = rows[place]
        assert isinstance(part, Tensor)
        return part
