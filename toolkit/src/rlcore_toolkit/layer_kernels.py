"""Kernels in the place of transformers' layers that compute the same.

On a CPU in fp32 they are rlcore's. On a GPU they are those of liger-kernel, where it is installed
(https://github.com/linkedin/Liger-Kernel).
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlcore_toolkit.cpu_kernels import are_hooked, kernel_linear, kernel_rms_norm, kernel_swiglu
from rlcore_toolkit.process_group import current_device

Kernel = Callable[[Any, Tensor], Tensor]
"""From a layer and its input to its output."""

_WIDTH = 8
"""Of the layers that are tried."""
_NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""How far numbers may be apart, and relative to their size."""
_MANY_ROWS = 1 << 15
"""From here on liger takes another kernel for narrow layers."""
_GATED = {"gate_proj", "up_proj", "down_proj"}


def use_kernels(
    model: nn.Module, dtype: torch.dtype = torch.float32, kernels: Sequence[Kernel] | None = None
) -> int:
    """Let layers of `model` compute by kernels for this process's device and `dtype`; returns how many do.

    A norm or a SwiGLU block does where a small layer of its class has equal values and gradients both ways.
    On a CPU linear layers and adapters do too. `kernels`: others to try than those of the device.
    """
    device = current_device()
    is_own = kernels is None and device.type == "cpu" and dtype == torch.float32
    kernels = _kernels(device, dtype) if kernels is None else kernels
    count = 0
    for module in model.modules():
        kernel: Kernel | None = None
        if is_own and (type(module) is nn.Linear or hasattr(module, "lora_A")):
            kernel = _linear if type(module) is nn.Linear else _adapted
        elif module._modules.keys() >= _GATED or _is_norm(module):
            kernel = next((one for one in kernels if _is_same(one, module, device, dtype)), None)
        if kernel is not None:
            module.forward = partial(_computed, module, kernel, device, dtype, module.forward)
            count += 1
    return count


def _kernels(device: torch.device, dtype: torch.dtype) -> Sequence[Kernel]:
    if device.type == "cpu":
        return (_norm, _gated) if dtype == torch.float32 else ()
    if importlib.util.find_spec("liger_kernel") is None:
        return ()
    return liger_kernels()


def _computed(
    module: Any,
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    plain: Callable[..., Tensor],
    *inputs: Any,
    **more: Any,
) -> Tensor:
    is_fit = (
        len(inputs) == 1 and not more and (inputs[0].device.type, inputs[0].dtype) == (device.type, dtype)
    )
    return kernel(module, *inputs) if is_fit else plain(*inputs, **more)


# --- rlcore's ----------------------------------------------------------------------------------------------


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


def _gated(block: Any, inputs: Tensor) -> Tensor:
    gate, up = block.gate_proj(inputs), block.up_proj(inputs)
    made_by = [block.gate_proj, block.up_proj]
    outputs: Tensor = block.down_proj(kernel_swiglu(gate, up, made_by=made_by))
    return outputs


# --- liger's -----------------------------------------------------------------------------------------------


def liger_kernels() -> Sequence[Kernel]:
    """A norm by `weight`, as Llama has it, one by `weight` + 1, as Gemma has it, and a SwiGLU block."""
    norm = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    swiglu = importlib.import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction

    def normed(offset: float, casting: str, layer: Any, inputs: Tensor) -> Tensor:
        outputs: Tensor = norm.apply(inputs, layer.weight, _eps(layer), offset, casting, False)
        return outputs

    def gated(block: Any, inputs: Tensor) -> Tensor:
        gate, up = block.gate_proj(inputs), block.up_proj(inputs)
        # its backward pass writes over both, which a hook may have kept
        is_free = not are_hooked([block.gate_proj, block.up_proj])
        outputs: Tensor = block.down_proj(swiglu.apply(gate, up) if is_free else functional.silu(gate) * up)
        return outputs

    return partial(normed, 0.0, "llama"), partial(normed, 1.0, "gemma"), gated


# --- the check ---------------------------------------------------------------------------------------------


def _eps(norm: nn.Module) -> Any:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


def _is_norm(module: nn.Module) -> bool:
    return module._parameters.get("weight") is not None and isinstance(_eps(module), float)


def _is_same(kernel: Kernel, module: nn.Module, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `kernel` has the values and gradients of the class of `module`, by a small layer of it."""
    if any(one is not None and one.dtype != dtype for one in module._parameters.values()):
        return False  # of another precision is its output too
    small: Any = copy.copy(module)
    tensor = partial(torch.linspace, device=device, dtype=dtype)
    small._parameters = {name: tensor(-1, 2, _WIDTH).requires_grad_() for name in module._parameters}
    with torch.random.fork_rng(devices=[]):
        small._modules = {
            name: nn.Linear(_WIDTH, _WIDTH).to(device, dtype) if name.endswith("_proj") else child
            for name, child in module._modules.items()
        }
    try:
        for rows in (4,) if device.type == "cpu" else (4, _MANY_ROWS):
            inputs = tensor(-2, 3, rows * _WIDTH).view(rows, _WIDTH).requires_grad_()
            found, wanted = (_results(one, small, inputs) for one in (kernel, type(small).forward))
            torch.testing.assert_close(found, wanted, rtol=_NEAR[dtype], atol=_NEAR[dtype])
    except Exception:  # whatever a layer of another kind says
        return False
    return True


@torch.enable_grad()
def _results(forward: Kernel, layer: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The outputs of `layer`, and the gradients of its inputs and parameters."""
    leaves = [inputs, *(one for one in layer.parameters() if one.requires_grad)]
    out = forward(layer, inputs)
    slope = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).cos().to(out.dtype)
    gradients = torch.autograd.grad((out * slope).sum(), leaves, materialize_grads=True)
    return [out.detach(), *gradients]
