"""Mini-batches: the samples of one optimizer step, marked by the column `minibatch`."""

import torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.learning.maths import indices_of


def assign_minibatches(rollout_B: Tensor, minibatches: int, policy_B: Tensor | None = None) -> Tensor:
    """The mini-batch of each sample, int64 [B]; of those of each policy by themselves.

    The rollouts, in the order of their first samples, are cut into `minibatches` pieces of nearly equal
    length. Samples of one rollout stay together. With fewer rollouts than mini-batches, the last mini-batches
    are empty.
    """
    if policy_B is not None:
        minibatch_B = torch.zeros_like(policy_B)
        for number in policy_B.unique():
            is_own_B = policy_B == number
            minibatch_B[is_own_B] = assign_minibatches(rollout_B[is_own_B], minibatches)
        return minibatch_B
    index_B, count_N = indices_of(rollout_B)
    first_N = torch.full_like(count_N, len(rollout_B))
    first_N = first_N.scatter_reduce(0, index_B, torch.arange(len(rollout_B)), "amin")
    rank_N = torch.argsort(torch.argsort(first_N))  # the place of each rollout in the order of `first_N`
    rollouts = len(count_N)
    return (rank_N * min(minibatches, rollouts) // max(1, rollouts))[index_B]


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
