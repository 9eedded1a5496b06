"""Where a role's memory lies: its weights, its gradients, and the state of its optimizer."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from rlcore_toolkit import current_device


def model_tensors(chunks: Sequence[nn.Module]) -> Iterator[Tensor]:
    """Parameters and buffers. With the distributed optimizer parameters are views of megatron's buffers."""
    for chunk in chunks:
        yield from chunk.parameters()
        yield from chunk.buffers()  # a router's bias is one


def gradient_buffers(models: Sequence[Any], optimizer: Any) -> list[Tensor]:
    """The buffers that `main_grad` looks into. Other references to gradients go, as they do in each step."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = None
    for model in models:
        for param in model.params_with_grad:
            param.grad = None
    return [
        buffer.grad_data for model in models for buffer in (*model.buffers, *model.expert_parallel_buffers)
    ]


def optimizer_state(chunks: Sequence[nn.Module], optimizer: Any) -> list[Tensor]:
    """Moments and fp32 masters, but not the shards of fp32 weights, which look into the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in model_tensors(chunks)}
    here = current_device().type
    return [
        tensor
        for tensor in _held(optimizer)
        if tensor.device.type == here and tensor.untyped_storage().data_ptr() not in weights
    ]


def _held(optimizer: Any) -> Iterator[Tensor]:
    for part in optimizer.chained_optimizers:
        if part.optimizer is None:  # this rank has no parameter of its kind
            continue
        for group in part.optimizer.param_groups:
            yield from group["params"]
        for state in part.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
