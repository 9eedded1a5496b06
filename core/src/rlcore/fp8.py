"""Weights in FP8, as DeepSeek-V3's are: blocks of 8-bit floats, each with a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.config_fp8 import Fp8Block

FP8_DTYPE = torch.float8_e4m3fn
FP8_SCALE_SUFFIX = "_scale_inv"
"""What a weight's name is followed by in the name of its scales."""


def dequantize_fp8(weight: Tensor, scale: Tensor, block: Fp8Block) -> Tensor:
    """weight FP8 [M, N], scale [⌈M / rows⌉, ⌈N / columns⌉] → fp32 [M, N]; ValueError for other shapes."""
    rows, columns = weight.shape
    expected = (-(-rows // block[0]), -(-columns // block[1]))
    if tuple(scale.shape) != expected:
        raise ValueError(f"{tuple(scale.shape)} scales for blocks of {block}, expected {expected}")
    tall = scale.float().repeat_interleave(block[0], 0)[:rows]
    return weight.float() * tall.repeat_interleave(block[1], 1)[:, :columns]
