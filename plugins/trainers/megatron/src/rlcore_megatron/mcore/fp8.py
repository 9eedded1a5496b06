"""Weights published in FP8, as DeepSeek-V3's are: blocks of 8-bit floats, each with a scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
SCALE_SUFFIX = "_scale_inv"
"""What a weight's name is followed by in the name of its scales."""

Block = tuple[int, int]
"""Rows and columns of a weight that share a scale."""


def block_of(quantization: Mapping[str, Any] | None) -> Block | None:
    """The block of config.json's `quantization_config`; None where it is not FP8 with a scale a block."""
    block = (quantization or {}).get("weight_block_size")
    is_fp8 = (quantization or {}).get("quant_method") == "fp8"
    if not is_fp8 or not isinstance(block, list | tuple) or len(block) != 2:
        return None
    return int(block[0]), int(block[1])


def dequantize(weight: Tensor, scale: Tensor, block: Block) -> Tensor:
    """weight FP8 [M, N], scale [⌈M / rows⌉, ⌈N / columns⌉] → fp32 [M, N]; ValueError for other shapes."""
    rows, columns = weight.shape
    expected = (-(-rows // block[0]), -(-columns // block[1]))
    if tuple(scale.shape) != expected:
        raise ValueError(f"{tuple(scale.shape)} scales for blocks of {block}, expected {expected}")
    tall = scale.float().repeat_interleave(block[0], 0)[:rows]
    return weight.float() * tall.repeat_interleave(block[1], 1)[:, :columns]
