"""The safetensors files of a model directory, read one tensor at a time."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor


class WeightFiles:
    """The tensors of a directory. They are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        self._open = cache(open_tensors)
        if index.is_file():
            places = json.loads(index.read_text())["weight_map"]
            self._files = {name: folder / file for name, file in places.items()}
        else:
            file = folder / "model.safetensors"
            self._files = dict.fromkeys(self._open(file).keys(), file)

    @property
    def names(self) -> list[str]:
        """Those of all tensors."""
        return list(self._files)

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of a tensor; all of one without dimensions."""
        opened = self._open(self._files[name])
        part = opened.get_slice(name)
        found: Tensor = part[rows] if part.get_shape() else opened.get_tensor(name)
        return found


def open_tensors(file: Path) -> Any:
    """A safetensors file, which stays open as long as somebody has it."""
    opened: Any = safe_open(file, "pt")
    return opened.__enter__()
