"""The dtypes of a run, "fp32" and "bf16", and the names that others have for them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DTYPE_NAMES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16"}
"""A run's dtype → what torch, config.json and servers call it."""

DTYPE_OF_NAME: Mapping[str, str] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
"""The reverse of `DTYPE_NAMES`."""


def torch_dtype(dtype: str) -> torch.dtype:
    """What torch has for a run's dtype."""
    import torch

    torch_dtype: torch.dtype = getattr(torch, DTYPE_NAMES[dtype])
    return torch_dtype
