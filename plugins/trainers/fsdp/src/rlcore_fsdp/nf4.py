"""Weights in NF4, four bits a number, as bitsandbytes makes them."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlcore import ConfigError
from rlcore_fsdp.config import nf4_complaint


@contextmanager
def _without_hub() -> Iterator[None]:
    """Within, bitsandbytes fetches no kernel for CPUs from a hub, and does not warn that it could not."""
    kernels, log = sys.modules.get("kernels"), logging.getLogger("bitsandbytes.backends.cpu.ops")
    level, log.level = log.level, logging.ERROR
    sys.modules["kernels"] = None  # type: ignore[assignment]  # what an import then raises ImportError of
    try:
        yield
    finally:
        log.level = level
        del sys.modules["kernels"]
        if kernels is not None:
            sys.modules["kernels"] = kernels


if complaint := nf4_complaint():
    raise ConfigError(complaint)
try:
    with _without_hub():
        from bitsandbytes.functional import QuantState, create_dynamic_map, dequantize_4bit, quantize_4bit
except (ImportError, OSError, RuntimeError) as error:  # PEFT imports it too, whatever the base is in
    raise ConfigError(
        f"bitsandbytes is installed, but cannot be imported: {error}; install it anew, or remove it."
    ) from error

BLOCK, OUTER = 64, 256
"""Numbers that share a scale, and scales that share one."""


class Nf4:
    """A `rlcore_fsdp.quantized.Codec`, with scales that are quantized too.

    Of n numbers: `codes` uint8 [n / 2, 1]; `scales` uint8 [n / 64]; for those `outer` fp32 [n / 16,384] and
    `offset` fp32 []. `levels` fp32 [256] are the values of a scale's code.
    """

    def __init__(self) -> None:
        self._levels = create_dynamic_map()

    def empty(self, like: Tensor) -> Mapping[str, Tensor]:
        blocks = -(-like.numel() // BLOCK)
        return {
            "codes": like.new_empty((-(-like.numel() // 2), 1), dtype=torch.uint8),
            "scales": like.new_empty(blocks, dtype=torch.uint8),
            "outer": like.new_empty(-(-blocks // OUTER), dtype=torch.float32),
            "offset": like.new_empty((), dtype=torch.float32),
            "levels": self._levels,
        }

    def encode(self, weight: Tensor) -> Mapping[str, Tensor]:
        codes, state = quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
        outer = state.state2
        made = (codes, state.absmax, outer.absmax, state.offset, outer.code)
        return dict(zip(("codes", "scales", "outer", "offset", "levels"), made, strict=True))

    def decode(self, values: Mapping[str, Any], like: Tensor) -> Tensor:
        outer = QuantState(values["outer"], code=values["levels"], blocksize=OUTER, dtype=torch.float32)
        numbers = like.shape, None, BLOCK, "nf4", like.dtype
        state = QuantState(values["scales"], *numbers, values["offset"], outer)
        weight: Tensor = dequantize_4bit(values["codes"], state)
        return weight
