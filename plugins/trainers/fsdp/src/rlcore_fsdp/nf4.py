"""Frozen weights in NF4, four bits a number: https://arxiv.org/abs/2305.14314."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rlcore import ConfigError
from rlcore_fsdp.config import nf4_complaint
from rlcore_toolkit import SafetensorsFiles, WeightNames


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


class Nf4Linear(nn.Linear):
    """A linear layer whose frozen weight [outputs, inputs] is in NF4, with scales that are quantized too.

    Buffers hold its n numbers: `codes` uint8 [n / 2, 1]; `scales` uint8 [n / 64]; for those `outer` fp32
    [n / 16,384] and `offset` fp32 []. `levels` fp32 [256] are the values of a scale's code. Each use makes
    the weight anew, also the backward pass. `like`: the weight's shape and dtype, on the meta device.
    """

    codes: Tensor
    scales: Tensor
    outer: Tensor
    offset: Tensor
    levels: Tensor

    def __init__(self, layer: nn.Linear, levels: Tensor) -> None:
        """`layer`: the one that it replaces, on the meta device."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.like = layer.weight.detach()
        numbers = self.like.numel()
        blocks = -(-numbers // BLOCK)
        sizes = {
            "codes": ((-(-numbers // 2), 1), torch.uint8),
            "scales": ((blocks,), torch.uint8),
            "outer": ((-(-blocks // OUTER),), torch.float32),
            "offset": ((), torch.float32),
        }
        for name, (shape, dtype) in sizes.items():
            self.register_buffer(name, torch.empty(shape, dtype=dtype, device="meta"), persistent=False)
        self.register_buffer("levels", levels, persistent=False)

    @torch.no_grad()
    def put(self, weight: Tensor) -> None:
        """Quantize `weight`, on the device and in the dtype of the computation."""
        codes, state = _quantized(weight)
        made = (codes, state.absmax, state.state2.absmax, state.offset)
        for buffer, value in zip((self.codes, self.scales, self.outer, self.offset), made, strict=True):
            buffer.copy_(value)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # torch's is a parameter
        """The whole weight, for models that compute with it themselves: layers of Mamba do."""
        return self.whole()

    def whole(self) -> Tensor:
        """The weight as the layer computes with it."""
        outer = QuantState(self.outer, code=self.levels, blocksize=OUTER, dtype=torch.float32)
        state = QuantState(
            self.scales, self.like.shape, None, BLOCK, "nf4", self.like.dtype, self.offset, outer
        )
        weight: Tensor = dequantize_4bit(self.codes, state)
        return weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Product.apply(inputs, self)  # type: ignore[no-untyped-call]  # torch's
        return outputs

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.like  # its name, shape and dtype


class _Product(torch.autograd.Function):
    """inputs · weightᵀ + bias, which keeps the weight's codes for the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: Nf4Linear) -> Tensor:
        ctx.layer = layer
        return functional.linear(inputs, layer.whole(), layer.bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope @ ctx.layer.whole(), None


def quantize(model: PreTrainedModel) -> dict[str, Nf4Linear]:
    """Replace the linear layers of a model on the meta device, but its output layer.

    They are those that transformers quantizes. By the names of their weights without an adapter.
    """
    head, levels, found = model.get_output_embeddings(), create_dynamic_map(), {}
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head and ".lora_" not in name:
            layer = Nf4Linear(module, levels)
            model.set_submodule(name, layer)
            found[f"{name}.weight".replace(".base_layer.", ".")] = layer
    return found


def rounding(model: PreTrainedModel, path: str) -> Callable[[str, Tensor], Tensor]:
    """From the name and the tensor of a weight of the directory to the tensor that a run computes with.

    `model`: that of the directory, on the meta device; it is quantized afterwards. ConfigError where
    transformers makes a quantized weight of several tensors.
    """
    layers = quantize(model)
    reading = WeightNames(model, SafetensorsFiles.of(Path(path)).names).reading
    names = {one.first: one.sources[0][0] for one in reading if one.is_plain}
    if joint := next((name for name in layers if name not in names), None):
        raise ConfigError(
            f"--trainer.quantize-base: found nf4, but transformers makes {joint} of other tensors; leave it "
            "out."
        )
    quantized = {names[name]: layer.like.dtype for name, layer in layers.items()}

    def rounded(name: str, weight: Tensor) -> Tensor:
        if name not in quantized:
            return weight
        found: Tensor = dequantize_4bit(*_quantized(weight.to(quantized[name])))
        return found

    return rounded


def _quantized(weight: Tensor) -> tuple[Tensor, Any]:
    codes, state = quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
    return codes, state
