"""The payload of SGLang's `/update_weights_from_tensor`, by value and without sglang.

A payload is a pickle of `{"flattened_tensor": uint8 [n], "metadata": [FlattenedTensorMetadata, …]}`, read by
SGLang's allow-listed unpickler. By value, because handles to another process's CPU memory end the server.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlcore import flatten_tensors

SGLANG_CLASS = "sglang.srt.weight_sync.tensor_bucket", "FlattenedTensorMetadata"


@dataclass
class FlattenedTensorMetadata:
    """Stands for SGLang's class of that name; the fields are SGLang's. Indices count bytes."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    start_idx: int
    end_idx: int
    numel: int


class _Pickler(pickle._Pickler):
    """Writes the stand-in by the name that the server knows. In Python, as the C pickler would import it."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if obj is not FlattenedTensorMetadata:
            super().save_global(obj, name)  # type: ignore[misc]  # typeshed has no internals
            return
        self.write(pickle.GLOBAL + "{}\n{}\n".format(*SGLANG_CLASS).encode())  # type: ignore[attr-defined]
        self.memoize(obj)  # type: ignore[attr-defined]


def payload(tensors: list[tuple[str, Tensor]]) -> bytes:
    """One bucket; it travels as base64."""
    metadata, start = [], 0
    for name, tensor in tensors:
        end = start + tensor.nbytes
        metadata.append(FlattenedTensorMetadata(name, tensor.shape, tensor.dtype, start, end, tensor.nbytes))
        start = end
    buffer = io.BytesIO()
    whole = flatten_tensors(tensor for _, tensor in tensors)
    _Pickler(buffer, protocol=4).dump({"flattened_tensor": whole, "metadata": metadata})
    return buffer.getvalue()
