"""One version of the weights on its way: what is written for engines, and in which form."""

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlcore import (
    FP8_SCALE_SUFFIX,
    EngineError,
    WeightForms,
    WeightsLocation,
    checksum,
    copy_side_files,
    torch_dtype,
)
from rlcore_toolkit.fp8 import FP8_DTYPE, quantize_fp8, scales_shape

FILE = "model.safetensors"
DTYPE_ALONE = WeightForms()
KEPT_VERSIONS = 2
"""The version that engines may still be reading, and the one that is being written."""


def disk_room(size: int) -> int:
    """The most bytes that a folder of whole versions holds, for weights of `size` bytes."""
    # The oldest goes only once the newest is whole, so for a moment there is one more.
    return (KEPT_VERSIONS + 1) * size


def write_version(
    root: Path,
    tensors: Iterable[tuple[str, Tensor]],
    version: int,
    *,
    dtype: str,
    forms: WeightForms = DTYPE_ALONE,
    model_path: Path | None = None,
) -> WeightsLocation:
    """Writes `root/<version>/`, complete or not at all, and removes versions that nobody reads any more.

    `tensors`: by Hugging Face name; they are written as `wire_tensors` makes them.
    `model_path`: the directory whose config and tokenizer are copied beside the weights.
    """
    values = wire_tensors(tensors, dtype, forms)
    with new_version(root, version) as draft:
        save_weights(draft, values, model_path)
    for path in list(root.iterdir()):
        if path.name.isdecimal() and int(path.name) <= version - KEPT_VERSIONS:
            shutil.rmtree(path)
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
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        # It is there where a version is written once more, whole, for an engine that could not use its
        # changes.
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise EngineError(
            f"The weights of version {version} cannot be written to {root}: {error}."
        ) from error


def wire_tensors(
    tensors: Iterable[tuple[str, Tensor]], dtype: str, forms: WeightForms = DTYPE_ALONE
) -> dict[str, Tensor]:
    """The tensors as engines get them, on the CPU. `dtype`: "fp32" or "bf16"; see `on_wire`.

    They may share memory with `tensors`.
    """
    return {
        sent: value.cpu()
        for name, tensor in tensors
        for sent, value in on_wire(name, tensor, torch_dtype(dtype), forms)
    }


def on_wire(
    name: str, tensor: Tensor, dtype: torch.dtype, forms: WeightForms
) -> Iterator[tuple[str, Tensor]]:
    """What engines get of one tensor, on its device: cast to its dtype, or FP8 and then its scales."""
    fp8 = forms.fp8
    if fp8 is None or name not in fp8.names:
        yield name, tensor.detach().to(forms.dtype_of(name, dtype)).contiguous()
        return
    small, scale = quantize_fp8(tensor, fp8.block, ue8m0=fp8.ue8m0)
    yield name, small
    yield name + FP8_SCALE_SUFFIX, scale


def wire_bytes(name: str, tensor: Tensor, dtype: torch.dtype, forms: WeightForms) -> int:
    """The size of what `on_wire` makes of a tensor."""
    fp8 = forms.fp8
    if fp8 is None or name not in fp8.names:
        return tensor.numel() * forms.dtype_of(name, dtype).itemsize
    scales = math.prod(scales_shape(tensor.shape, fp8.block))
    return tensor.numel() * FP8_DTYPE.itemsize + scales * torch.float32.itemsize
