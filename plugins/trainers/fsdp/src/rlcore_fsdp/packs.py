"""A micro-batch as the model reads it: a pack, or a row for each sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rlcore import TrainBatch, token_ranges
from rlcore_toolkit import Piece, prompt_trees, tree_order


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Sequences, and which of their outputs predict response tokens.

    `tokens`, `positions` int64 [rows, width]: one row that holds all sequences, or a row for each. `pieces`:
    the runs of the one row, in its order; None: there is a row for each. `rows` int64 [n]: the places among
    rows · width that predict the n response tokens, sample after sample; `targets` int64 [n]: those tokens.
    `samples`: which of the batch's they are, in their order here; `part`: the same.
    """

    tokens: Tensor
    positions: Tensor
    pieces: Sequence[Piece] | None
    rows: Tensor
    targets: Tensor
    samples: Sequence[int]
    part: TrainBatch


def pack(batch: TrainBatch, samples: Sequence[int], device: torch.device, *, in_one_row: bool) -> Pack:
    """The micro-batch of these `samples`; of none it is a sequence of one token, so that ranks meet.

    In one row a prompt stands once for the samples of its group that are neighbors in the batch. That is on a
    CPU: the mask of its branches would cost a GPU its fastest attention.
    """
    part, pieces = batch.select(samples), [(0, 1, 0, 0)] if in_one_row else None
    if in_one_row and samples:
        order, is_first = tree_order(part, share=device.type == "cpu")
        samples, part = [samples[place] for place in order], part.select(order)
        layout = prompt_trees(part, is_first)
        tokens, positions = part.tokens[layout.source][None], layout.positions[None]
        rows, pieces = layout.rows, layout.pieces
    else:
        tokens, positions, rows = _row_each(part)
    first = torch.cumsum(part.lengths, 0) - part.response_lengths
    return Pack(
        tokens=tokens.to(device),
        positions=positions.to(device),
        pieces=pieces,
        rows=rows.to(device),
        targets=part.tokens[token_ranges(first, part.response_lengths)].to(device),
        samples=samples,
        part=part.reaching("all").to(device),
    )


def _row_each(part: TrainBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, padded on the right, which no token of a causal model sees; positions; rows."""
    alone = part.tokens.split(part.lengths.tolist()) if len(part) else [part.tokens.new_zeros(1)]
    tokens = pad_sequence(alone, batch_first=True)
    starts = torch.arange(len(part)) * tokens.shape[1]
    rows = token_ranges(starts + part.prompt_lengths - 1, part.response_lengths)
    return tokens, torch.arange(tokens.shape[1]).expand(tokens.shape), rows
