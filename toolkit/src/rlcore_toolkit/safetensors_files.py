"""The tensors of safetensors files, read when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from rlcore import FP8_SCALE_SUFFIX, Fp8Block, ModelError, fp8_block, parse_json
from rlcore_toolkit.fp8 import dequantize_fp8, scales_shape
from rlcore_toolkit.safetensors_stream import INDEX


class SafetensorsFiles:
    """Files that stay open as long as somebody has this. OSError or SafetensorError where one is unreadable.

    A tensor that is in several of them has some of its rows in each.
    """

    def __init__(self, places: Mapping[str, Sequence[Path]], block: Fp8Block | None = None) -> None:
        """`places`: the name of each tensor, and the files that hold its rows, in their order. `block`: of
        weights in FP8.
        """
        self._places, self._open, self.block = places, cache(_opened), block

    @classmethod
    def of(cls, folder: Path) -> SafetensorsFiles:
        """The files of a Hugging Face directory. Its index says which one holds a tensor."""
        config = parse_json((folder / "config.json").read_text())
        block = fp8_block(((config.get("text_config") or {}) | config).get("quantization_config"))
        if (index := folder / INDEX).is_file():
            places = json.loads(index.read_text())["weight_map"]
            return cls({name: [folder / file] for name, file in places.items()}, block)
        single = folder / "model.safetensors"
        return cls.joined([single] if single.is_file() else sorted(folder.glob("*.safetensors")), block)

    @classmethod
    def joined(cls, files: Iterable[Path], block: Fp8Block | None = None) -> SafetensorsFiles:
        """`files` whose tensors of one name are one tensor."""
        places: dict[str, list[Path]] = {}
        made = cls(places, block)
        for file in files:
            for name in made._open(file).keys():  # noqa: SIM118 - it is no mapping
                places.setdefault(name, []).append(file)
        return made

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors, but the scales of weights in FP8."""
        return [name for name in self._places if not self.block or not name.endswith(FP8_SCALE_SUFFIX)]

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def is_fp8(self, name: str) -> bool:
        """Whether the tensor is a weight in FP8, with scales."""
        return self.block is not None and name + FP8_SCALE_SUFFIX in self._places

    def parts(self, name: str) -> list[Any]:
        """The part of a tensor in each of its files, as safetensors reads slices of it."""
        return [self._open(file).get_slice(name) for file in self._places[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a whole tensor."""
        shapes = [part.get_shape() for part in self.parts(name)]
        return (sum(shape[0] for shape in shapes), *shapes[0][1:]) if shapes[0] else ()

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of a tensor; all of one without dimensions."""
        if not (shape := self.shape(name)):
            whole: Tensor = self._open(self._places[name][0]).get_tensor(name)
            return whole
        start, stop, _ = rows.indices(shape[0])
        found: list[Tensor] = []
        for part in self.parts(name):
            size = part.get_shape()[0]
            found.append(part[min(max(start, 0), size) : min(max(stop, 0), size)])
            start, stop = start - size, stop - size
        return torch.cat(found) if len(found) > 1 else found[0]

    def scales(self, name: str) -> Tensor:
        """The scales of a weight in FP8. ModelError where they are not one for each block."""
        if not self.is_fp8(name):
            raise ModelError(f"{name}: it is in FP8, and has no {FP8_SCALE_SUFFIX}.")
        scales = self.read(name + FP8_SCALE_SUFFIX)
        assert self.block is not None, "it is in FP8"
        expected = scales_shape(torch.Size(self.shape(name)), self.block)
        if tuple(scales.shape) != expected:
            raise ModelError(
                f"{name}{FP8_SCALE_SUFFIX}: found {tuple(scales.shape)} scales for blocks of {self.block}, "
                f"expected {expected}."
            )
        if not scales.isfinite().all():
            raise ModelError(f"{name}{FP8_SCALE_SUFFIX} holds NaN or infinity.")
        return scales

    def full(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of what a tensor stands for: fp32 where it is in FP8."""
        if self.block is None or not self.is_fp8(name):
            return self.read(name, rows)
        return dequantize_fp8(self.read(name), self.scales(name), self.block)[rows]


def _opened(file: Path) -> Any:
    opened: Any = safe_open(file, "pt")
    return opened.__enter__()
