"""Weights in INT4, as Kimi-K2-Thinking is published: `pack-quantized` of the library compressed-tensors.

Of a weight [O, I], groups of neighbouring inputs share a scale. `weight_packed` int32 [O, ⌈I / 8⌉] has eight
numbers in an element, the first in its lowest bits, each plus 8; `weight_scale` is [O, groups], and
`weight_shape` the two sizes of the weight.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PACKED, SCALE, SHAPE = "_packed", "_scale", "_shape"
"""What follows a weight's name in the names of the three tensors."""
_BITS, _OFFSET = 4, 8


def is_int4(quantization: Mapping[str, Any] | None) -> bool:
    """Whether config.json's `quantization_config` says what `dequantize_int4` reads, of every weight."""
    config = quantization or {}
    if (config.get("quant_method"), config.get("format")) != ("compressed-tensors", "pack-quantized"):
        return False
    weights = [group.get("weights") or {} for group in config.get("config_groups", {}).values()]
    wanted = {"num_bits": _BITS, "type": "int", "symmetric": True, "strategy": "group"}
    return bool(weights) and all(wanted.items() <= one.items() and not one.get("actorder") for one in weights)


def dequantize_int4(packed: Tensor, scale: Tensor, shape: Tensor) -> Tensor:
    """The weight in fp32, which is exact: its rounding to bf16 is what the library computes in bf16.

    ValueError where the three do not fit.
    """
    rows, columns = (int(size) for size in shape)
    if packed.dtype != torch.int32 or packed.shape != (rows, -(-columns * _BITS // 32)):
        raise ValueError(f"{packed.dtype} {list(packed.shape)}, which do not hold [{rows}, {columns}]")
    if scale.ndim != 2 or len(scale) != rows or columns % scale.shape[1]:
        raise ValueError(f"scales {list(scale.shape)}, which do not divide [{rows}, {columns}] into groups")
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)
    numbers = ((packed[..., None] >> shifts) & 15).flatten(1)[:, :columns] - _OFFSET
    return numbers.float() * scale.float().repeat_interleave(columns // scale.shape[1], dim=1)
