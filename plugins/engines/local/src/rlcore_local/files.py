"""The tensors in the files of a model directory, as the engine takes and gives them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from rlcore import FP8_SCALE_SUFFIX

_JOINED = re.compile(r"(.*\.mlp\.experts)\.(gate_up|down)_proj")


class Files:
    """The safetensors of a directory.

    Some hold the experts of a layer in one tensor (Qwen3.5). They come one by one, as trainers publish them,
    where `models`, the class of transformers that makes the model of `config`, knows them so as well.
    """

    def __init__(self, model_path: Path, models: Any, config: Any) -> None:
        self._paths = sorted(model_path.glob("*.safetensors"))
        self.has_joined = False
        if any(map(_JOINED.fullmatch, tensor_names(model_path))):
            with torch.device("meta"):
                model = models.from_config(config)
            saved = revert_weight_conversion(model, model.state_dict())
            self.has_joined = any(".experts.0." in name for name in saved)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Scales of FP8 weights come as fp32, as they do in a publication; some are published in bf16."""
        for path in self._paths:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping, it has no __iter__
                    yield from self._apart(name, opened.get_tensor(name))

    def names(self) -> Iterator[str]:
        """Those of `tensors`."""
        for path in self._paths:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - as above
                    empty = torch.empty(opened.get_slice(name).get_shape(), device="meta")
                    yield from (own for own, _ in self._apart(name, empty))

    def _apart(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        match = _JOINED.fullmatch(name) if self.has_joined else None
        if match is None:
            yield name, tensor.float() if name.endswith(FP8_SCALE_SUFFIX) else tensor
            return
        for number, matrix in enumerate(tensor):
            parts = (
                {"down": matrix}
                if match[2] == "down"
                else dict(zip(("gate", "up"), matrix.chunk(2), strict=True))
            )
            for part, rows in parts.items():
                yield f"{match[1]}.{number}.{part}_proj.weight", rows


def tensor_names(model_path: Path) -> Iterator[str]:
    """The names in the safetensors of a directory, as they are there."""
    for path in sorted(model_path.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            yield from opened.keys()
