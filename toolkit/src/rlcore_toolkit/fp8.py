"""Weights in FP8, as DeepSeek-V3's are: blocks of 8-bit floats, each with a scale."""

import torch
from torch import Tensor
from torch.nn import functional

from rlcore import Fp8Block

FP8_DTYPE = torch.float8_e4m3fn
_MOST = torch.finfo(FP8_DTYPE).max
_LEAST_SCALE = torch.finfo(torch.float32).tiny
"""The scale of a block of zeros, so that nothing is divided by 0."""


def quantize_fp8(weight: Tensor, block: Fp8Block, *, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    """weight [M, N] → FP8 [M, N], and scales, fp32 [⌈M / rows⌉, ⌈N / columns⌉]; both on its device.

    A scale is the largest absolute value of its block, divided by the largest number of e4m3, 448.
    `ue8m0`: rounded up to a power of two, as DeepSeek-V3.1's are.

    Source: DeepSeek-V3's technical report (https://arxiv.org/abs/2412.19437), section 3.3.2.
    """
    (rows, columns), (height, width) = weight.shape, block
    padded = functional.pad(weight.detach().float(), (0, -columns % width, 0, -rows % height))
    blocks = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    scale = (blocks.abs().amax((1, 3)) / _MOST).clamp_(min=_LEAST_SCALE)
    if ue8m0:
        scale = _power_of_two(scale)
    small = (blocks / scale[:, None, :, None]).clamp_(-_MOST, _MOST)
    return small.flatten(2).flatten(0, 1)[:rows, :columns].to(FP8_DTYPE).contiguous(), scale


def _power_of_two(positive: Tensor) -> Tensor:
    """The least powers of two that are at least the given numbers, fp32; no denormal ones."""
    # A mantissa that is not 0 carries into the exponent. A logarithm, rounded, could be one too many.
    return ((positive.view(torch.int32) + 0x7FFFFF) & ~0x7FFFFF).view(torch.float32)


def scales_shape(weight: torch.Size, block: Fp8Block) -> tuple[int, int]:
    """[M, N] → [⌈M / rows⌉, ⌈N / columns⌉]."""
    (rows, columns), (height, width) = weight, block
    return -(-rows // height), -(-columns // width)


def dequantize_fp8(weight: Tensor, scale: Tensor, block: Fp8Block) -> Tensor:
    """weight FP8 [M, N], scale [⌈M / rows⌉, ⌈N / columns⌉] → fp32 [M, N]; ValueError for other shapes."""
    rows, columns = weight.shape
    expected = scales_shape(weight.shape, block)
    if tuple(scale.shape) != expected:
        raise ValueError(f"{tuple(scale.shape)} scales for blocks of {block}, expected {expected}")
    tall = scale.float().repeat_interleave(block[0], 0)[:rows]
    return weight.float() * tall.repeat_interleave(block[1], 1)[:, :columns]
