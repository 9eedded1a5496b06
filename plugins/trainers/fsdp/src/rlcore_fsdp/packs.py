"""A micro-batch as the model reads it: a pack, or a row for each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlcore import TrainBatch, token_ranges


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Sequences, and which of their outputs predict response tokens.

    `tokens`, `positions` int64 [rows, width]: one row that holds all sequences, or a row for each. `lengths`:
    of the sequences in one row, in its order; None: there is a row for each. `rows` int64 [n]: the places
    among rows · width that predict the n response tokens, sample after sample; `targets` int64 [n]: those
    tokens. `part`: the samples.
    """

    tokens: Tensor
    positions: Tensor
    lengths: Sequence[int] | None
    rows: Tensor
    targets: Tensor
    part: TrainBatch


def pack(batch: TrainBatch, samples: Sequence[int], device: torch.device, *, in_one_row: bool) -> Pack:
    """The micro-batch of these `samples`; of none it is a sequence of one token, so that ranks meet."""
    part = batch.select(samples)
    first = torch.cumsum(part.lengths, 0) - part.lengths
    responses = token_ranges(first + part.prompt_lengths, part.response_lengths)
    make = _one_row if in_one_row else _row_each
    tokens, positions, starts, lengths = make(part, first)
    rows = token_ranges(starts + part.prompt_lengths - 1, part.response_lengths)
    return Pack(
        tokens=tokens.to(device),
        positions=positions.to(device),
        lengths=lengths,
        rows=rows.to(device),
        targets=part.tokens[responses].to(device),
        part=part.reaching("all").to(device),
    )


def _one_row(part: TrainBatch, first: Tensor) -> tuple[Tensor, Tensor, Tensor, Sequence[int]]:
    """Tokens, positions, where each sample starts, and the lengths in order: equal ones side by side."""
    if not len(part):
        zero = torch.zeros(1, 1, dtype=torch.int64)
        return zero, zero, first, [1]
    order = torch.argsort(part.lengths, stable=True)
    lengths = part.lengths[order]
    starts = torch.empty_like(first)
    starts[order] = torch.cumsum(lengths, 0) - lengths
    tokens = part.tokens[token_ranges(first[order], lengths)]
    return tokens[None], token_ranges(torch.zeros_like(lengths), lengths)[None], starts, lengths.tolist()


def _row_each(part: TrainBatch, first: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    """The same, padded on the right, which no token of a causal model sees."""
    alone = part.tokens.split(part.lengths.tolist()) if len(part) else [part.tokens.new_zeros(1)]
    tokens = pad_sequence(alone, batch_first=True)
    width = tokens.shape[1]
    return tokens, torch.arange(width).expand(tokens.shape), torch.arange(len(part)) * width, None
