"""What autograd keeps of a step: the bytes that a plan of activations must match."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from rlcore.api.batch import TrainBatch
from rlcore_testing.tiny import VOCAB_SIZE


def saved_bytes(models: Iterable[nn.Module], step: Callable[[], object]) -> int:
    """Bytes that `step` saves for the backward pass, beside the weights of `models`."""
    own = {param.untyped_storage().data_ptr() for model in models for param in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        """The tensor stays, so that no other one gets its place in memory."""
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


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
