"""Gather the whole batch on every data-parallel rank, in an order that is independent of the split."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.api.batch import TrainBatch


def gather_rows(local: Tensor, group: ProcessGroup | None) -> Tensor:
    """The rows of all ranks of `group`, in the order of the ranks; without a group, `local` itself.

    `local` [n, …] is on the CPU (gloo). n may differ between ranks; dtype and the further dimensions may not.
    """
    if group is None or group.size() == 1:
        return local
    # `all_gather` takes equal shapes only, so all ranks pad to the longest share.
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(counts, torch.tensor([len(local)]), group=group)
    most = max(int(count) for count in counts)
    padded = local.new_zeros(most, *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def gather_batch(local: TrainBatch, group: ProcessGroup | None) -> TrainBatch:
    """The samples of all ranks of `group`, in the order of their `position`.

    Every rank passes the same columns, in any order. Those of `per_input` are left out: they are large, and
    only the rank of their samples reads them.
    """
    # Sorted names: the ranks must gather the same column at the same time.
    whole = TrainBatch(
        tokens=gather_rows(local.tokens, group),
        prompt_lengths=gather_rows(local.prompt_lengths, group),
        response_lengths=gather_rows(local.response_lengths, group),
        per_token={name: gather_rows(local.per_token[name], group) for name in sorted(local.per_token)},
        per_sample={name: gather_rows(local.per_sample[name], group) for name in sorted(local.per_sample)},
    )
    position_B = whole.per_sample["position"]
    if bool((position_B.diff() > 0).all()):
        return whole
    return whole.select(torch.argsort(position_B).tolist())


def rows_of(position_B: Tensor, ascending_B: Tensor) -> list[int]:
    """Where each of `position_B` stands in `ascending_B`, which holds them all."""
    rows: list[int] = torch.searchsorted(ascending_B, position_B).tolist()
    return rows
