"""Weights in MXFP4, as gpt-oss is published: 4-bit floats (E2M1), of which 32 share a power of two.

The format is that of https://arxiv.org/abs/2310.10537, table 1.
"""

import torch
from torch import Tensor

BLOCKS, SCALES = "_blocks", "_scales"
"""What the names of the two tensors of a weight end with."""

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS = 127


def dequantize_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 blocks [..., G, 16] and uint8 scales [..., G] → fp32 [..., 32 G].

    A byte of a block has two numbers, the first in its lower bits. ValueError where the two do not fit.
    """
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise ValueError(f"{blocks.dtype} and {scales.dtype}, expected bytes")
    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != 16:
        raise ValueError(f"the shapes {list(blocks.shape)} and {list(scales.shape)}, which do not fit")
    values = torch.tensor([*_POSITIVE, *(-value for value in _POSITIVE)])
    numbers = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    return torch.ldexp(values[numbers.int()], scales.int()[..., None] - _BIAS).flatten(-2)
