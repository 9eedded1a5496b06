"""What config.json says of weights in FP8."""

from collections.abc import Mapping
from typing import Any

Fp8Block = tuple[int, int]
"""Rows and columns of a weight that share a scale."""


FP8_SCALE_SUFFIX = "_scale_inv"
"""What a weight's name is followed by in the name of its scales."""


def fp8_block(quantization: Mapping[str, Any] | None) -> Fp8Block | None:
    """The block of config.json's `quantization_config`; None where it is not e4m3 with a scale a block."""
    config = quantization or {}
    block = config.get("weight_block_size")
    if config.get("quant_method") != "fp8" or config.get("fmt", "e4m3") != "e4m3":
        return None
    if not isinstance(block, list | tuple) or len(block) != 2:
        return None
    return int(block[0]), int(block[1])
