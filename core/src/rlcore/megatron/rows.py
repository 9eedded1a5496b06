"""Calling a megatron GPT so that logits are computed only where a response token is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from rlcore.megatron.packing import Pack


class RowSelector:
    """Narrows the hidden states to the rows that predict response tokens, before the output layer.

    Prompts then cost no vocabulary-sized work. Under sequence parallelism the output layer itself gathers the
    hidden states, so there the logits are narrowed afterwards.
    """

    def __init__(self, chunks: Sequence[torch.nn.Module], config: TransformerConfig) -> None:
        self._rows: Tensor | None = None
        self._early = not config.sequence_parallel
        for chunk in chunks:
            for module in chunk.modules():
                output_layer = getattr(module, "output_layer", None)  # absent or None before the last stage
                if self._early and isinstance(output_layer, torch.nn.Module):
                    output_layer.register_forward_pre_hook(self._narrow)

    def call(self, model: Any, part: Pack) -> Tensor:
        """The model's output for one pack: logits on the last pipeline stage, hidden states before."""
        self._rows = part.rows if part.rows.numel() else part.rows.new_zeros(1)
        output = model(part.tokens, part.position_ids, None, packed_seq_params=part.params)
        assert isinstance(output, Tensor)
        return output

    def logits(self, output: Tensor, part: Pack) -> Tensor:
        """`output` [1, …, V/tp] → the rows [n, V/tp] of `part.rows`; of one row where there is none."""
        logits = output[0]
        if self._early:
            return logits
        return logits.index_select(0, part.rows if part.rows.numel() else part.rows.new_zeros(1))

    def _narrow(self, module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self._rows is not None
        return (args[0].index_select(0, self._rows), *args[1:])
