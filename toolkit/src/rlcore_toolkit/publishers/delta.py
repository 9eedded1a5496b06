"""What has changed between two versions of the weights, as one safetensors file.

A change is the XOR of a tensor's old and new bits, its bytes sorted by their place in the number, compressed
by zstd: small steps of training leave the high bytes, and in bf16 most numbers, as they are, and zeros cost
nothing. Tensors that did not change are left out. Bit-exact for every dtype, NaN included.

The file's metadata holds, under `rlcore`, JSON of `Changes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlcore import DeltaError, checksum, first_line
from rlcore_toolkit.cpu_kernels import by_rows

if TYPE_CHECKING:
    from pyarrow import Codec

FILE = "delta.safetensors"
_KEY = "rlcore"
_LEVEL = 1
"""Level of zstd: the fastest. Higher levels gain little, because the changes are mostly noise."""


class Change(BaseModel):
    """The change of one tensor. `digest` covers the compressed bytes, `checksum` the new tensor."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    digest: str
    checksum: str


class Changes(BaseModel):
    """The metadata of a file, which turns the tensors of version `base` into those of `version`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    base: int = Field(ge=0)
    version: int = Field(ge=0)
    tensors: dict[str, Change]


def write(
    file: Path,
    *,
    base: tuple[int, Mapping[str, Tensor], Mapping[str, str]],
    new: tuple[int, Mapping[str, Tensor], Mapping[str, str]],
) -> None:
    """Writes `file`, which turns `base` into `new`.

    Each is a version, its tensors on the CPU, and their checksums; names, dtypes and shapes are the same.
    """
    (base_version, old_tensors, old_sums), (version, tensors, sums) = base, new
    assert old_tensors.keys() == tensors.keys(), "two versions of one model have the same tensors"
    packed = {
        name: compress(old_tensors[name], tensor)
        for name, tensor in tensors.items()
        if sums[name] != old_sums[name]
    }
    changes = Changes(
        base=base_version,
        version=version,
        tensors={
            name: Change(digest=_digest(content), checksum=sums[name]) for name, content in packed.items()
        },
    )
    save_file(packed, file, metadata={_KEY: changes.model_dump_json()})


def read_changes(file: Path) -> Changes:
    """Read the metadata of `file`. DeltaError if rlcore did not write the file."""
    try:
        with safe_open(file, framework="pt") as opened:
            return Changes.model_validate_json((opened.metadata() or {}).get(_KEY, ""))
    except (SafetensorError, OSError, ValidationError) as error:
        raise DeltaError(f"{file} cannot be read as changes of weights: {first_line(error)}.") from error


def apply_delta(file: Path, held: Mapping[str, Tensor], version: str) -> Iterator[tuple[str, Tensor]]:
    """The new tensors (name, on the CPU) that `file` makes of `held`, whose version is `version`.

    Take them all before using one: DeltaError if `file` is made for another version, is damaged, or makes
    something else of `held` than what was published.
    """
    changes = read_changes(file)
    if version != str(changes.base):
        raise DeltaError(
            f"{file} turns version {changes.base} of the weights into {changes.version}, but version "
            f"{version} is held."
        )
    try:
        with safe_open(file, framework="pt") as opened:
            for name, change in changes.tensors.items():
                if name not in held:
                    raise DeltaError(f"{file} changes {name!r}, which is not held.")
                packed = opened.get_tensor(name)
                if _digest(packed) != change.digest:
                    raise DeltaError(f"{file} is damaged: the bytes of {name!r} are not those written.")
                value = apply(held[name], packed)
                if checksum(value) != change.checksum:
                    raise DeltaError(
                        f"{file} does not lead to version {changes.version}: the {name!r} that is held is "
                        f"not that of version {changes.base}."
                    )
                yield name, value
    except (SafetensorError, OSError, ValueError) as error:
        raise DeltaError(f"{file} is damaged: {first_line(error)}.") from error


def compress(old: Tensor, new: Tensor) -> Tensor:
    """The change from `old` to `new`, of one shape and dtype, as compressed bytes: uint8 [n]."""
    assert (old.shape, old.dtype) == (new.shape, new.dtype), "a tensor keeps its shape and dtype"
    planes = (_bytes(old) ^ _bytes(new)).T.contiguous()
    return _tensor(_codec().compress(_buffer(planes)))


def apply(old: Tensor, packed: Tensor) -> Tensor:
    """The tensor that `compress(old, …)` = `packed` was made for, on the CPU."""
    raw = _codec().decompress(_buffer(packed), decompressed_size=old.nbytes)
    planes = _tensor(raw).reshape(old.dtype.itemsize, old.numel())
    return (_bytes(old) ^ planes.T).reshape(-1).view(old.dtype).reshape(old.shape)


def _bytes(tensor: Tensor) -> Tensor:
    """The numbers' bytes, [count, itemsize]."""
    flat = by_rows(tensor.detach().cpu()).reshape(-1)
    return flat.view(torch.uint8).reshape(-1, tensor.dtype.itemsize)


def _buffer(tensor: Tensor) -> Any:
    import pyarrow  # here, because it does not work beside every numpy: other ways go without it

    return pyarrow.py_buffer(tensor.numpy())


def _tensor(raw: Any) -> Tensor:
    return (
        torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw.size else torch.empty(0, dtype=torch.uint8)
    )


def _codec() -> Codec:
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=_LEVEL)


def _digest(packed: Tensor) -> str:
    return hashlib.blake2b(packed.numpy().data, digest_size=16).hexdigest()
