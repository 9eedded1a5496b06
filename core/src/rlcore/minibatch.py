"""The share of a batch that belongs to one optimizer step, by the column `minibatch`."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.data.batch import TrainBatch


def select(batch: TrainBatch, rows: list[int]) -> TrainBatch:
    """`batch.select(rows)`, without a copy where that is the batch itself."""
    return batch if rows == list(range(len(batch))) else batch.select(rows)


def samples_of(batch: TrainBatch, number: int) -> list[int]:
    """The rows of the samples of mini-batch `number`."""
    rows: list[int] = torch.nonzero(batch.per_sample["minibatch"] == number).flatten().tolist()
    return rows


def tokens_of(batch: TrainBatch, number: int) -> Tensor:
    """Which response tokens belong to mini-batch `number`, bool [R]."""
    return (batch.per_sample["minibatch"] == number)[batch.segments]
