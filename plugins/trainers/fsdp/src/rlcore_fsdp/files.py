"""The safetensors files of a model directory, read one tensor at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor


class WeightFiles:
    """The tensors of a directory. They are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        index, files = folder / "model.safetensors.index.json", {"model.safetensors"}
        if index.is_file():
            files = set(json.loads(index.read_text())["weight_map"].values())
        self._holders: dict[str, Any] = {}
        for file in sorted(files):
            opened = open_tensors(folder / file)
            self._holders |= dict.fromkeys(opened.keys(), opened)

    @property
    def names(self) -> list[str]:
        """Those of all tensors."""
        return list(self._holders)

    def read(self, name: str, rows: slice = slice(None)) -> Tensor:
        """These rows of a tensor; all of one without dimensions."""
        part = self._holders[name].get_slice(name)
        found: Tensor = part[rows] if part.get_shape() else self._holders[name].get_tensor(name)
        return found


def open_tensors(file: Path) -> Any:
    """A safetensors file, which stays open as long as somebody has it."""
    opened: Any = safe_open(file, "pt")
    return opened.__enter__()
