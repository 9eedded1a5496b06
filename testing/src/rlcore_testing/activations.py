"""What autograd keeps of a step: the bytes that a plan of activations must match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlcore.api.batch import TrainBatch
from rlcore_testing.tiny import VOCAB_SIZE


def saved_bytes(models: Iterable[nn.Module], step: Callable[[], object]) -> int:
    """The most bytes at one time that `step` keeps for the backward pass, beside the weights of `models`."""
    own = {param.untyped_storage().data_ptr() for model in models for param in model.parameters()}
    live, peak = LiveBytes(), 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal peak
        if tensor.untyped_storage().data_ptr() not in own:
            peak = max(peak, live.add(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return peak


class LiveBytes:
    """Counts the storages that are still there of the tensors that it was given."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, *tensors: Tensor) -> int:
        """The bytes with those of `tensors`."""
        for tensor in tensors:
            reference = StorageWeakRef(tensor.untyped_storage())
            self._live[reference.cdata] = reference, tensor.untyped_storage().nbytes()
        self._live = {place: entry for place, entry in self._live.items() if not entry[0].expired()}
        return sum(size for _, size in self._live.values())


def state_bytes(role: Any) -> tuple[int, int, int]:
    """Bytes of a megatron role with the distributed optimizer: weights, gradients, its states."""
    buffers = [buffer for model in role.models for buffer in (*model.buffers, *model.expert_parallel_buffers)]
    weights = {param.untyped_storage().data_ptr() for model in role.models for param in model.parameters()}
    held = [
        tensor
        for part in role.optimizer.chained_optimizers
        for param, state in part.optimizer.state.items()
        for tensor in (param, *state.values())  # the parameter is an fp32 copy, or a part of the weights
    ]
    optimizer = sum(tensor.nbytes for tensor in held if tensor.untyped_storage().data_ptr() not in weights)
    return (
        sum(buffer.param_data.nbytes for buffer in buffers),
        sum(buffer.grad_data.nbytes for buffer in buffers),
        optimizer,
    )


def equal_samples(count: int, prompt: int, response: int, vocabulary: int = VOCAB_SIZE) -> TrainBatch:
    """`count` samples of `prompt` and `response` random tokens."""
    rows = count * response
    return TrainBatch(
        tokens=torch.randint(0, vocabulary, (count * (prompt + response),)),
        prompt_lengths=torch.full((count,), prompt),
        response_lengths=torch.full((count,), response),
        per_token={
            "loss_mask": torch.ones(rows),
            "weights": torch.ones(rows) / rows,
            "advantages": torch.randn(rows),
        },
        per_sample={"position": torch.arange(count), "group": torch.arange(count)},
    )


class MadeBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations within it make; `peak`: the most at one time.

    Views and what operations fill in place are no new tensors, and those of torch's device "meta" have no
    memory. `own`: of what was there before.
    """

    def __init__(self, own: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._own = {tensor.untyped_storage().data_ptr() for tensor in own}
        self._live = LiveBytes()
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and count what it gave."""
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and not leaf.is_meta]
        made = [tensor for tensor in tensors if tensor.untyped_storage().data_ptr() not in self._own]
        self.peak = max(self.peak, self._live.add(*made))
        return result
