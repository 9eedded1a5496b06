"""Weights on their way: one safetensors file that the train worker writes and an engine reads."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlcore.checksums import checksum
from rlcore.errors import EngineError

FILE = "model.safetensors"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
FP32_SUFFIX = "e_score_correction_bias"
"""Of weights that transformers and SGLang hold in fp32 whatever the model's dtype."""
KEPT_VERSIONS = 2
"""The version that engines may still be reading, and the one that is being written."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where the weights of one version lie, and what they are. Travels from the train worker to the driver.

    `directory` holds `model.safetensors` (and config and tokenizer where they were asked for).
    `checksums`: Hugging Face name → `rlcore.checksums.checksum`, of the values as written.
    """

    directory: str
    version: int
    checksums: Mapping[str, str]

    @property
    def file(self) -> str:
        """The safetensors file."""
        return str(Path(self.directory) / FILE)


def shared_dir(name: str, *, size_bytes: int) -> Path:
    """A new private folder for the versions kept, of `size_bytes` each: in memory where that has room."""
    memory = Path("/dev/shm")
    need = (KEPT_VERSIONS + 1) * size_bytes
    has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > need
    return Path(tempfile.mkdtemp(prefix=f"rlcore-{name}-", dir=memory if has_room else None))


def write_version(
    root: Path,
    tensors: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    dtype: str,
    model_path: Path | None = None,
) -> Location:
    """Writes `root/<version>/`, complete or not at all, and removes versions that nobody reads any more.

    `tensors`: Hugging Face names; values are cast to `dtype` ("fp32" or "bf16") and moved to the CPU; those
    whose names end with `FP32_SUFFIX` are fp32 always.
    `model_path`: the directory whose config and tokenizer are copied beside the weights.
    """
    values = {name: _ready(name, tensor, DTYPES[dtype]) for name, tensor in tensors}
    target, draft = root / str(version), root / f"{version}.draft"
    try:
        _discard(draft)
        draft.mkdir(parents=True)
        if model_path is not None:
            copy_side_files(model_path, draft)
        save_file(values, draft / FILE, metadata={"format": "pt"})
        _discard(target)
        draft.rename(target)
        _discard_before(root, version - KEPT_VERSIONS + 1)
    except (OSError, SafetensorError) as error:
        _discard(draft)
        raise EngineError(
            f"The weights of version {version} cannot be written to {root}: {error}."
        ) from error
    sums = {name: checksum(value) for name, value in values.items()}
    return Location(directory=str(target), version=version, checksums=sums)


def layout(file: str) -> list[tuple[str, str, list[int], int]]:
    """Name, dtype, shape and byte offset (from the start of `file`) of each tensor."""
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    header.pop("__metadata__", None)
    return [
        (name, DTYPE_NAMES[entry["dtype"]], entry["shape"], 8 + size + entry["data_offsets"][0])
        for name, entry in header.items()
    ]


def _ready(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if name.endswith(FP32_SUFFIX):
        dtype = torch.float32
    return tensor.detach().to(device="cpu", dtype=dtype).contiguous()


def copy_side_files(model_path: Path, target: Path) -> None:
    """Config and tokenizer of `model_path`, so that `target` can be loaded as a model."""
    for file in model_path.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)


def _discard(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _discard_before(root: Path, oldest: int) -> None:
    for path in root.iterdir():
        if path.name.isdecimal() and int(path.name) < oldest:
            shutil.rmtree(path)
