"""What stands on the last stage: logits without the padding of the vocabulary, or one value a token."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_toolkit import current_device

NEVER = -1e9
"""The logit of a token that does not exist: of probability 0, and finite, so that p·log p is 0."""


class VocabularyHead(ColumnParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """megatron's output layer over this rank's slice of the vocabulary.

    The vocabulary is padded to a multiple of the tensor-parallel size; the padding lies on the last ranks,
    and has the logit `NEVER` and no gradient.
    """

    def __init__(self, layer: ColumnParallelLinear, vocab_size: int) -> None:
        """Takes the place of `layer`, of which it has the weight."""
        super().__init__(
            layer.input_size,
            layer.output_size,
            config=layer.config,
            init_method=layer.config.init_method,
            bias=False,
            skip_weight_param_allocation=True,
            tp_group=layer.tp_group,
        )
        self.weight = layer.weight
        width = self.output_size_per_partition
        self._real = min(width, max(0, vocab_size - width * parallel.tensor_rank()))
        self._is_deferred = False
        self._tied: Tensor | None = None

    @contextmanager
    def deferred(self, is_deferred: bool) -> Iterator[None]:
        """Where `is_deferred`, the layer returns what it would multiply by `matrix`: the hidden states.

        As every rank has them: [T, 1, H], all T under sequence parallelism too. The gradients that the ranks
        give them are summed. For `rlcore_toolkit.HiddenRows`.
        """
        self._is_deferred = is_deferred
        try:
            yield
        finally:
            self._is_deferred = False

    @property
    def matrix(self) -> Tensor:
        """[V/tp, H]: the layer's own, or that of the embedding, which the last forward was given."""
        matrix = self.weight if self._tied is None else self._tied
        assert isinstance(matrix, Tensor)
        return matrix

    def forward(
        self, hidden: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None
    ) -> tuple[Tensor, None]:
        """megatron's (output, bias) pair."""
        self._tied = weight
        if self._is_deferred and self.sequence_parallel:
            return gather_from_sequence_parallel_region(hidden, group=self.tp_group), None
        if self._is_deferred:
            return copy_to_tensor_model_parallel_region(hidden, group=self.tp_group), None
        logits, _ = super().forward(hidden, weight, runtime_gather_output)
        if logits.requires_grad:
            # The gradient is a transposed view, which a frozen matrix would be multiplied with row by row.
            logits.register_hook(lambda slope: slope.flatten(0, 1).unsqueeze(1))
        padding = self.output_size_per_partition - self._real
        if padding:
            logits = functional.pad(logits[..., : self._real], (0, padding), value=NEVER)
        return logits, None


class ValueHead(nn.Module):
    """One value a token, fp32; zero at first. Stands where GPTModel has its output layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        zeros = torch.zeros(1, config.hidden_size, dtype=config.params_dtype, device=current_device())
        self.weight = nn.Parameter(zeros)

    def forward(self, hidden: Tensor, weight: Any = None, **_: Any) -> tuple[Tensor, None]:
        """hidden [T, 1, H], or its part of a sequence-parallel rank → (values [T, 1, 1], no bias)."""
        if self.sequence_parallel:
            # every rank computes all values, so the gradient is cut, not summed, on the way back
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return functional.linear(hidden, self.weight).float(), None
