"""The payload of SGLang's `/update_weights_from_tensor`, without sglang.

A payload is a pickle of `{"flattened_tensor": uint8 [n], "metadata": [FlattenedTensorMetadata, …]}`, read by
SGLang's allow-listed unpickler. The tensor is in it by value, or as a `Call` that opens another process's
memory (`rlcore_sglang.shared_bucket`).

A train worker makes it, and the driver hands it to a server that this run has started, with the run's token.
Nothing in rlcore reads one.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore_toolkit import flatten_tensors

SGLANG_CLASS = "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"
SGLANG_REBUILD = "sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified"


@dataclass
class FlattenedTensorMetadata:
    """Stands for SGLang's class of that name; the fields are SGLang's. Indices count bytes."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


class RebuildCudaTensor:
    """Stands for SGLang's function that opens CUDA memory on the device of a UUID."""


_STAND_INS = {FlattenedTensorMetadata: SGLANG_CLASS, RebuildCudaTensor: SGLANG_REBUILD}


@dataclass(frozen=True)
class Call:
    """Is pickled as a call that the reader makes: `function(*arguments)`."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


class _Pickler(pickle._Pickler):
    """Writes the stand-ins by names that the server knows. In Python, as the C pickler would import them."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj not in _STAND_INS:
            super().save_global(obj, name)  # type: ignore[misc]  # typeshed has no internals
            return
        self.write(pickle.GLOBAL + "{}\n{}\n".format(*_STAND_INS[obj]).encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


def payload(tensors: Sequence[tuple[str, Tensor]], flat: Tensor | Call | None = None) -> bytes:
    """One bucket; it travels as base64. `flat`: the bytes of `tensors`; None: they go along by value."""
    metadata, start = [], 0
    for name, tensor in tensors:
        end = start + tensor.nbytes
        metadata.append(FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, end, tensor.nbytes))
        start = end
    buffer = io.BytesIO()
    whole = flatten_tensors(tensor for _, tensor in tensors) if flat is None else flat
    _Pickler(buffer, protocol=4).dump({"flattened_tensor": whole, "metadata": metadata})
    return buffer.getvalue()
