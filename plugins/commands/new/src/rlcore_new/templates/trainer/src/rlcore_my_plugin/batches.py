"""A batch in micro-batches, and what is read from log-probs. Shapes: R response tokens, V words."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rlcore import TrainBatch
from torch import Tensor


def micro_batches(batch: TrainBatch, budget: int) -> Iterator[tuple[list[int], Tensor]]:
    """Rows of each micro-batch, and the places of their response tokens in the batch."""
    ends = torch.cumsum(batch.response_lengths, 0).tolist()
    starts = [0, *ends[:-1]]
    lengths = batch.lengths.tolist()
    bins: list[list[int]] = []
    for unit in batch.units():
        if bins and sum(lengths[i] for i in [*bins[-1], *unit]) <= budget:
            bins[-1] += unit
        else:
            bins.append([*unit])
    for rows in bins:
        yield rows, torch.tensor([at for i in rows for at in range(starts[i], ends[i])], dtype=torch.int64)


def of_targets(log_probs: Tensor, part: TrainBatch) -> Tensor:
    """[R] of [R, V]: the values of the tokens that stand there."""
    ends, lengths = torch.cumsum(part.lengths, 0).tolist(), part.response_lengths.tolist()
    targets = [part.tokens[end - n : end] for end, n in zip(ends, lengths, strict=True)]
    return log_probs.gather(1, torch.cat(targets).to(log_probs.device)[:, None])[:, 0]


def entropy_of(log_probs: Tensor) -> Tensor:
    """[R] of [R, V]."""
    return -(log_probs.exp() * log_probs).sum(-1)
