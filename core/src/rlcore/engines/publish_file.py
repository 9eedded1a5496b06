"""Weights on their way: one safetensors file that the train worker writes and an engine reads."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlcore.api.errors import EngineError
from rlcore.api.types import parse_json
from rlcore.checkpoint.weights_check import shapes_in
from rlcore.checksums import checksum
from rlcore.config_fp8 import Fp8Block, fp8_block
from rlcore.disk import remove_folder
from rlcore.engines.stream import Piece, WeightStream
from rlcore.fp8 import FP8_DTYPE, FP8_SCALE_SUFFIX, quantize_fp8, scales_shape

FILE = "model.safetensors"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# The bias of DeepSeek-V3's router: rounded to bf16, it would choose other experts than the trainer's.
FP32_SUFFIX = "e_score_correction_bias"
"""How names of weights end that are fp32 in every engine, whatever the model's dtype."""
KEPT_VERSIONS = 2
"""The version that engines may still be reading, and the one that is being written."""


def disk_room(size: int) -> int:
    """The most bytes that a folder of whole versions holds, for weights of `size` bytes."""
    # The oldest goes only once the newest is whole, so for a moment there is one more.
    return (KEPT_VERSIONS + 1) * size


@dataclass(frozen=True, kw_only=True)
class Fp8Weights:
    """The weights that engines hold in FP8: `names`, with a scale for each `block`.

    `ue8m0`: scales are powers of two.
    """

    block: Fp8Block
    names: frozenset[str]
    ue8m0: bool = False

    @classmethod
    def of(cls, model_path: Path) -> Fp8Weights | None:
        """Those of a Hugging Face directory: all that have scales in its files. None: its config has no FP8.

        The files say it, not a rule about names: embeddings, norms, routers, the output head and whatever
        else the publisher left full stay so, whatever they are called.
        """
        how = parse_json((model_path / "config.json").read_text()).get("quantization_config")
        block = fp8_block(how)
        if block is None:
            return None
        names = shapes_in(model_path).keys()
        return cls(
            block=block,
            names=frozenset(name for name in names if name + FP8_SCALE_SUFFIX in names),
            ue8m0=how.get("scale_fmt") == "ue8m0",
        )


@dataclass(frozen=True, kw_only=True)
class WeightsLocation:
    """Where the weights of one version lie, and what they are. Travels from the train worker to the driver.

    `directory`, named by a version, holds the `model.safetensors` of that version, and config and tokenizer
    if they were asked for. `chain`: files of changes that turn it into `version`, the oldest first; empty if
    the directory already is `version`. `stream`: the source in the driver, for weights that come from the
    trainer's memory; `pieces`: those of the stream, for the engine that loads them. `checksums`: Hugging Face
    name → `rlcore.checksum` of the values as written.
    """

    directory: str
    version: int
    checksums: Mapping[str, str]
    chain: tuple[str, ...] = ()
    stream: WeightStream | None = field(default=None, compare=False)
    pieces: AsyncIterator[Piece] | None = field(default=None, compare=False)

    @property
    def file(self) -> str:
        """The safetensors file."""
        return str(Path(self.directory) / FILE)


def write_version(
    root: Path,
    tensors: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    dtype: str,
    fp8: Fp8Weights | None = None,
    model_path: Path | None = None,
) -> WeightsLocation:
    """Writes `root/<version>/`, complete or not at all, and removes versions that nobody reads any more.

    `tensors`: by Hugging Face name; they are written as `wire_tensors` makes them.
    `model_path`: the directory whose config and tokenizer are copied beside the weights.
    """
    values = wire_tensors(tensors, dtype, fp8)
    with new_version(root, version) as draft:
        save_weights(draft, values, model_path)
    for path in list(root.iterdir()):
        if path.name.isdecimal() and int(path.name) <= version - KEPT_VERSIONS:
            remove_folder(path)
    folder, checksums = str(root / str(version)), checksums_of(values)
    return WeightsLocation(directory=folder, version=version, checksums=checksums)


def save_weights(folder: Path, values: Mapping[str, Tensor], model_path: Path | None = None) -> None:
    """Write `values` into `folder`, and beside them the config and tokenizer of `model_path`, if given."""
    if model_path is not None:
        copy_side_files(model_path, folder)
    save_file(dict(values), folder / FILE, metadata={"format": "pt"})


def checksums_of(values: Mapping[str, Tensor]) -> dict[str, str]:
    """Name → checksum."""
    return {name: checksum(value) for name, value in values.items()}


@contextlib.contextmanager
def new_version(root: Path, version: int) -> Iterator[Path]:
    """A folder to write `root/<version>/` in, which then appears complete or not at all; EngineError."""
    target, draft = root / str(version), root / f"{version}.draft"
    try:
        remove_folder(draft)
        draft.mkdir(parents=True)
        yield draft
        # It is there where a version is written once more, whole, for an engine that could not use its
        # changes.
        remove_folder(target)
        draft.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise EngineError(
            f"The weights of version {version} cannot be written to {root}: {error}."
        ) from error


def wire_tensors(
    tensors: Iterable[tuple[str, Tensor]], dtype: str, fp8: Fp8Weights | None = None
) -> dict[str, Tensor]:
    """The tensors as engines get them, on the CPU. `dtype`: "fp32" or "bf16"; see `on_wire`.

    They may share memory with `tensors`.
    """
    return {
        sent: value.cpu()
        for name, tensor in tensors
        for sent, value in on_wire(name, tensor, DTYPES[dtype], fp8)
    }


def on_wire(
    name: str, tensor: Tensor, dtype: torch.dtype, fp8: Fp8Weights | None
) -> Iterator[tuple[str, Tensor]]:
    """What engines get of one tensor, on its device: cast to `wire_dtype`, or FP8 and then its scales."""
    if fp8 is None or name not in fp8.names:
        yield name, tensor.detach().to(wire_dtype(name, dtype)).contiguous()
        return
    small, scale = quantize_fp8(tensor, fp8.block, ue8m0=fp8.ue8m0)
    yield name, small
    yield name + FP8_SCALE_SUFFIX, scale


def wire_bytes(name: str, tensor: Tensor, dtype: torch.dtype, fp8: Fp8Weights | None) -> int:
    """The size of what `on_wire` makes of a tensor."""
    if fp8 is None or name not in fp8.names:
        return tensor.numel() * wire_dtype(name, dtype).itemsize
    scales = math.prod(scales_shape(tensor.shape, fp8.block))
    return tensor.numel() * FP8_DTYPE.itemsize + scales * torch.float32.itemsize


def wire_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the engine wants the tensor `name`. `dtype`: the engine's."""
    return torch.float32 if name.endswith(FP32_SUFFIX) else dtype


def copy_side_files(model_path: Path, target: Path) -> None:
    """Copy config and tokenizer of `model_path`, so that `target` can be loaded as a model."""
    for file in model_path.iterdir():
        if file.suffix in (".json", ".jinja", ".txt", ".model") and not file.name.endswith(".index.json"):
            shutil.copyfile(file, target / file.name)
