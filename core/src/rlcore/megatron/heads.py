"""What stands on the last stage: logits without the padding of the vocabulary, or one value a token."""

from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from rlcore.megatron import parallel
from rlcore.megatron.imports import device

NEVER = -1e9
"""The logit of a token that does not exist: of probability 0, and finite, so that p·log p is 0."""


def hide_padding(output_layer: nn.Module, vocab_size: int, padded_vocab_size: int) -> None:
    """Give the padded rows of a vocab-parallel `output_layer` the logit `NEVER`, and no gradient.

    The vocabulary is padded to a multiple of the tensor-parallel size; the padding lies on the last ranks.
    """
    part = padded_vocab_size // parallel.tensor_size()
    real = min(part, max(0, vocab_size - part * parallel.tensor_rank()))
    if real == part:
        return

    def hide(module: nn.Module, args: Any, output: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        logits, bias = output
        return functional.pad(logits[..., :real], (0, part - real), value=NEVER), bias

    output_layer.register_forward_hook(hide)


class ValueHead(nn.Module):
    """One value a token, fp32; zero at first. Stands where GPTModel has its output layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        zeros = torch.zeros(1, config.hidden_size, dtype=config.params_dtype, device=device())
        self.weight = nn.Parameter(zeros)

    def forward(self, hidden: Tensor, weight: Any = None, **_: Any) -> tuple[Tensor, None]:
        """hidden [T, 1, H], or its part of a sequence-parallel rank → (values [T, 1, 1], no bias)."""
        if self.sequence_parallel:
            # every rank computes all values, so the gradient is cut, not summed, on the way back
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return functional.linear(hidden, self.weight).float(), None
