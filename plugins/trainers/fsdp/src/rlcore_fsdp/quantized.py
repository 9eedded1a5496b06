"""Frozen weights in fewer bits: https://arxiv.org/abs/2305.14314."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from rlcore import ConfigError
from rlcore_fsdp.config import FP8_BLOCK
from rlcore_toolkit import (
    SafetensorsFiles,
    WeightNames,
    dequantize_fp8,
    quantize_fp8,
)

Values = Mapping[str, Any]
"""The tensors, by name, that a codec makes of a weight."""


class Codec(Protocol):
    """How a weight [outputs, inputs] is held."""

    def empty(self, like: Tensor) -> Values:
        """What `encode` makes, without memory, of a weight of the shape and dtype of `like`."""

    def encode(self, weight: Tensor) -> Values:
        """What holds `weight`, on its device."""

    def decode(self, values: Values, like: Tensor) -> Tensor:
        """The weight that is held, of the shape and dtype of `like`."""


class Fp8:
    """A `Codec` as published weights in FP8 have it: `codes` e4m3 [outputs, inputs], and fp32 `scales`, one
    for a block of `FP8_BLOCK`.
    """

    def empty(self, like: Tensor) -> Values:
        return self.encode(like)

    def encode(self, weight: Tensor) -> Values:
        return dict(zip(("codes", "scales"), quantize_fp8(weight, FP8_BLOCK), strict=True))

    def decode(self, values: Values, like: Tensor) -> Tensor:
        return dequantize_fp8(values["codes"], values["scales"], FP8_BLOCK).to(like.dtype)


def _codec(name: str) -> Codec:
    if name == "fp8":
        return Fp8()
    from rlcore_fsdp.nf4 import Nf4  # bitsandbytes need not be there

    return Nf4()


class QuantizedLinear(nn.Linear):
    """A linear layer whose frozen weight is in buffers that a codec made.

    Each use makes the weight anew, also the backward pass. `like`: its shape and dtype, on the meta device.
    """

    def __init__(self, layer: nn.Linear, codec: Codec) -> None:
        """`layer`: the one that it replaces, on the meta device."""
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.like, self.codec = layer.weight.detach(), codec
        for name, buffer in codec.empty(self.like).items():
            self.register_buffer(name, buffer, persistent=False)

    @torch.no_grad()
    def put(self, values: Values) -> None:
        """Hold these from now on."""
        for name, value in values.items():
            self.get_buffer(name).copy_(value)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # torch's is a parameter
        """The weight as the layer computes with it."""
        return self.codec.decode(self._buffers, self.like)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Product.apply(inputs, self)  # type: ignore[no-untyped-call]  # torch's
        return outputs

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.like  # its name, shape and dtype


class _Product(torch.autograd.Function):
    """inputs · weightᵀ + bias, which keeps the weight's codes for the backward pass."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return functional.linear(inputs, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        return slope @ ctx.layer.weight, None


def quantize(model: PreTrainedModel, base: str) -> dict[str, QuantizedLinear]:
    """Replace the linear layers of a model on the meta device, but its output layer.

    They are those that transformers quantizes. By the names of their weights without an adapter. `base`: a
    value of `--trainer.quantize-base`.
    """
    if base == "none":
        return {}
    head, codec, found = model.get_output_embeddings(), _codec(base), {}
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head and ".lora_" not in name:
            layer = QuantizedLinear(module, codec)
            model.set_submodule(name, layer)
            found[f"{name}.weight".replace(".base_layer.", ".")] = layer
    return found


def rounding(model: PreTrainedModel, path: str, base: str) -> Callable[[str, Tensor], Tensor]:
    """From the name and the tensor of a weight of the directory to the tensor that a run computes with.

    `model`: that of the directory, on the meta device; it is quantized afterwards. `base`: as of `quantize`.
    ConfigError where transformers makes a quantized weight of several tensors.
    """
    files = SafetensorsFiles.of(Path(path))
    layers, names = quantize(model, base), WeightNames(model, files.names).sources
    if joint := next((name for name in layers if name not in names), None):
        raise ConfigError(
            f"--trainer.quantize-base: found {base}, but transformers makes {joint} of other tensors; leave "
            "it out."
        )
    quantized = {names[name]: layer for name, layer in layers.items()}

    def rounded(name: str, weight: Tensor) -> Tensor:
        if name not in quantized:
            return weight
        codec, like = quantized[name].codec, quantized[name].like
        weight = weight.to(like.dtype)
        return weight if files.is_fp8(name) else codec.decode(codec.encode(weight), like)

    return rounded
