"""Calling a megatron GPT so that logits are computed only where a response token is predicted."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from rlcore_megatron.mcore.layers.heads import VocabularyHead
from rlcore_megatron.mcore.packs.packing import Pack
from rlcore_toolkit import MOST_LOGITS, MOST_ON_HOST, HiddenRows, Logits


class RowSelector:
    """Narrows the hidden states to the rows that predict response tokens, before the output layer.

    Prompts then cost no vocabulary-sized work. Under sequence parallelism the output layer itself gathers the
    hidden states, so there its output is narrowed afterwards.
    """

    def __init__(self, chunks: Sequence[torch.nn.Module], config: TransformerConfig) -> None:
        self._rows: Tensor | None = None
        self._early = not config.sequence_parallel
        self._head: VocabularyHead | None = None
        self._is_deferred = False
        for chunk in chunks:
            for module in chunk.modules():
                output_layer = getattr(module, "output_layer", None)  # absent or None before the last stage
                if self._early and isinstance(output_layer, torch.nn.Module):
                    output_layer.register_forward_pre_hook(self._narrow)
                if isinstance(output_layer, VocabularyHead):
                    self._head = output_layer

    def call(self, model: Any, part: Pack) -> Tensor:
        """The model's output for one pack: hidden states before the last pipeline stage.

        On that, what `logits` takes.
        """
        self._rows = _rows(part)
        self._is_deferred = self._head is not None and self._is_large(self._head, part)
        with nullcontext() if self._head is None else self._head.deferred(self._is_deferred):
            output = model(part.tokens, part.position_ids, None, packed_seq_params=part.params)
        assert isinstance(output, Tensor)
        return output

    def logits(self, output: Tensor, part: Pack) -> Logits:
        """`output` [1, …, V/tp] → the rows [n, V/tp] of `part.rows`; of one row where there is none."""
        rows = output.squeeze(0) if self._early else output.squeeze(0).index_select(0, _rows(part))
        if self._head is None or not self._is_deferred:
            return rows
        return HiddenRows(hidden=rows, matrix=self._head.matrix)

    def _is_large(self, head: VocabularyHead, part: Pack) -> bool:
        rows = part.rows.numel() if self._early else part.tokens.shape[1]
        most = MOST_LOGITS if part.tokens.is_cuda else MOST_ON_HOST
        return bool(rows * head.output_size_per_partition > most)

    def _narrow(self, module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self._rows is not None
        return (args[0].index_select(0, self._rows), *args[1:])


def _rows(part: Pack) -> Tensor:
    # A micro-batch without response tokens takes one row: the head has collectives that all ranks enter.
    return part.rows if part.rows.numel() else part.rows.new_zeros(1)
