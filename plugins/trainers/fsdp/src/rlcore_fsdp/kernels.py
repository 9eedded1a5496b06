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
_NEAR = 1e-5
"""How far numbers may be apart, and relative to their size."""
_GATED = {"gate_proj", "up_proj", "down_proj"}


def use_kernels(model: nn.Module) -> None:
    """Let linear layers, adapters, RMS norms and SwiGLU blocks of `model` compute by kernels."""
    for module in model.modules():
        if type(module) is nn.Linear:
            kernel: Kernel | None = _linear
        elif hasattr(module, "lora_A"):
            kernel = _adapted
        else:
            kernel = _norm if _is_norm(module) else _gated if module._modules.keys() >= _GATED else None
            kernel = kernel if kernel and _is_same(kernel, module) else None
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
    return kernel_rms_norm(inputs, norm.weight, _eps(norm))


def _eps(norm: nn.Module) -> Any:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _is_norm(module: nn.Module) -> bool:
    return module._parameters.get("weight") is not None and isinstance(_eps(module), float)


def _gated(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    made_by = [block.gate_proj, block.up_proj]
    outputs: Tensor = block.down_proj(kernel_swiglu(gate, up, made_by=made_by))
    return outputs


def _is_same(kernel: Kernel, module: nn.Module) -> bool:
    """Whether `kernel` has the values and gradients of the class of `module`, by a small layer of it."""
    small: Any = copy.copy(module)
    small._parameters = {
        name: torch.linspace(-1, 2, _WIDTH, requires_grad=True) for name in module._parameters
    }
    with torch.random.fork_rng(devices=[]):
        small._modules = {
            name: nn.Linear(_WIDTH, _WIDTH) if name.endswith("_proj") else child
            for name, child in module._modules.items()
        }
    found = _results(kernel, small)
    try:
        torch.testing.assert_close(found, _results(type(small).forward, small), rtol=_NEAR, atol=_NEAR)
    except Exception:  # whatever a layer of another kind says
        return False
    return True


@torch.enable_grad()
def _results(forward: Kernel, layer: nn.Module) -> list[Tensor]:
    """The outputs of `layer`, and the gradients of its inputs and parameters."""
    inputs = torch.linspace(-2, 3, 4 * _WIDTH).view(4, _WIDTH).requires_grad_()
    leaves = [inputs, *(one for one in layer.parameters() if one.requires_grad)]
    out = forward(layer, inputs)
    gradients = torch.autograd.grad((out * out.detach().cos()).sum(), leaves, materialize_grads=True)
    return [out.detach(), *gradients]
