"""On a CPU in fp32: rlcore's kernels in the place of transformers' layers that compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rlcore_toolkit import fits_kernel, kernel_linear, kernel_rms_norm, kernel_swiglu

Kernel = Callable[[Any, Tensor], Tensor]
"""From a layer and its input to its output."""

_WIDTH = 8
"""Of the layers that are tried."""


def use_kernels(model: nn.Module) -> None:
    """Let linear layers, adapters, RMS norms and SwiGLU blocks of `model` compute by kernels."""
    for module in model.modules():
        if type(module) is nn.Linear:
            kernel: Kernel | None = _linear
        elif hasattr(module, "lora_A"):
            kernel = _adapted
        else:
            kernel = next((one for one in (_norm, _gated) if _is_same(one, module)), None)
        if kernel is not None:
            module.forward = partial(_computed, module, kernel, module.forward)


def _computed(module: Any, kernel: Kernel, plain: Callable[..., Tensor], *inputs: Any, **more: Any) -> Tensor:
    is_fit = len(inputs) == 1 and not more and fits_kernel(inputs[0])
    return kernel(module, *inputs) if is_fit else plain(*inputs, **more)


def _linear(layer: Any, inputs: Tensor) -> Tensor:
    outputs = kernel_linear(inputs, layer.weight)
    return outputs if layer.bias is None else outputs + layer.bias


def _adapted(layer: Any, inputs: Tensor) -> Tensor:
    """What PEFT's layer computes, but scales the few outputs of A and not the many of B: W x + B (s A x)."""
    outputs: Tensor = layer.base_layer(inputs)
    names = () if layer.disable_adapters else layer.active_adapters
    for name in (one for one in names if one in layer.lora_A):  # another policy may have no adapter here
        low = layer.lora_A[name](layer.lora_dropout[name](inputs)) * layer.scaling[name]
        outputs = outputs + layer.lora_B[name](low)
    return outputs


def _norm(norm: Any, inputs: Tensor) -> Tensor:
    eps: float = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return kernel_rms_norm(inputs, norm.weight, eps)


def _gated(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    made_by = [block.gate_proj, block.up_proj]
    outputs: Tensor = block.down_proj(kernel_swiglu(gate, up, made_by=made_by))
    return outputs


def _is_same(kernel: Kernel, module: nn.Module) -> bool:
    """Whether `kernel` computes what the class of `module` does, of a small layer of that class."""
    small: Any = copy.copy(module)
    small._parameters = {name: torch.linspace(-1, 2, _WIDTH) for name in module._parameters}
    small._modules = {
        name: nn.Linear(_WIDTH, _WIDTH) if name.endswith("_proj") else child
        for name, child in module._modules.items()
    }
    inputs = torch.linspace(-2, 3, 4 * _WIDTH).view(4, _WIDTH)
    try:
        with torch.no_grad():
            return torch.allclose(kernel(small, inputs), type(small).forward(small, inputs), atol=1e-6)
    except Exception:  # whatever a layer of another kind says
        return False
