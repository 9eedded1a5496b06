"""Gather the whole batch on every data-parallel rank, in an order that is independent of the split."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rlcore.api.batch import TrainBatch
from rlcore.learning.minibatch import select

MESSAGE_BYTES = 2**24
"""Columns are gathered together up to this size: memory for a message comes on top of the columns."""


def gather_rows(local: Sequence[Tensor], group: ProcessGroup | None) -> list[Tensor]:
    """The rows of all ranks of `group`, in the order of the ranks, of each tensor; without a group, `local`.

    A tensor [n, …] is on the CPU (gloo). n may differ between ranks; dtype and further dimensions may not.
    """
    if group is None or group.size() == 1:
        return list(local)
    counts = [torch.zeros(len(local), dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(counts, torch.tensor([len(tensor) for tensor in local]), group=group)
    row_bytes = torch.tensor([math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in local])
    sizes = torch.stack(counts) * row_bytes
    wholes: list[Tensor] = []
    # By the sizes of the largest rank, so that all ranks cut their tensors into the same messages.
    for begin, end in _bundles(sizes.amax(0).tolist()):
        wholes += _gather_message(local[begin:end], sizes[:, begin:end].tolist(), group)
    return wholes


def _bundles(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut tensors of so many bytes into messages: a call for each would take longer than a small batch."""
    begin = 0
    for end in range(1, len(sizes) + 1):
        if end == len(sizes) or sum(sizes[begin : end + 1]) > MESSAGE_BYTES:
            yield begin, end
            begin = end


def _gather_message(
    local: Sequence[Tensor], sizes: Sequence[Sequence[int]], group: ProcessGroup
) -> list[Tensor]:
    """Gather all of `local` in one message; `sizes`: the bytes of each, for every rank."""
    # `all_gather` takes equal shapes only, so all ranks pad to the longest message.
    padded = torch.zeros(max(map(sum, sizes)), dtype=torch.uint8)
    content = torch.cat([tensor.contiguous().flatten().view(torch.uint8) for tensor in local])
    padded[: len(content)] = content
    messages = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(messages, padded, group=group)
    by_rank = [message[: sum(size)].split(size) for message, size in zip(messages, sizes, strict=True)]
    return [
        torch.cat(pieces).view(tensor.dtype).view(-1, *tensor.shape[1:])
        for tensor, pieces in zip(local, zip(*by_rank, strict=True), strict=True)
    ]


def gather_batch(local: TrainBatch, group: ProcessGroup | None) -> TrainBatch:
    """The samples of all ranks of `group`, in the order of their `position`.

    Every rank passes the same columns, in any order. Those that do not reach all stay behind (`with_local`).
    """
    shared = local.reaching("all")
    # Sorted names: the ranks must send the same column at the same place.
    names = [(per, name) for per, table in shared.tables.items() for name in sorted(table)]
    tensors = [local.tokens, local.prompt_lengths, local.response_lengths]
    tensors += [shared.tables[per][name] for per, name in names]
    tokens, prompt_lengths, response_lengths, *columns = gather_rows(tensors, group)
    tables: dict[str, Any] = {f"per_{per}": {} for per in shared.tables}
    for (per, name), tensor in zip(names, columns, strict=True):
        tables[f"per_{per}"][name] = tensor
    whole = TrainBatch(
        tokens=tokens,
        prompt_lengths=prompt_lengths,
        response_lengths=response_lengths,
        **tables,
        columns=shared.columns,
    )
    return select(whole, torch.argsort(whole.per_sample["position"]).tolist())


def with_local(share: TrainBatch, local: TrainBatch) -> TrainBatch:
    """`share` of a gathered batch, with the columns of `local` that were not gathered.

    Both have the same samples in the same order.
    """
    tables: dict[str, Any] = {
        f"per_{per}": {name: tensor for name, tensor in table.items() if name not in share.columns}
        for per, table in local.tables.items()
    }
    return share.with_columns(**tables, columns=local.columns)


def joined(parts: Sequence[TrainBatch]) -> TrainBatch:
    """The samples of all `parts`, one after another; these have the same columns."""
    first = parts[0]
    if len(parts) == 1:
        return first
    tables: dict[str, Any] = {
        f"per_{per}": {name: torch.cat([part.tables[per][name] for part in parts]) for name in table}
        for per, table in first.tables.items()
    }
    return TrainBatch(
        tokens=torch.cat([part.tokens for part in parts]),
        prompt_lengths=torch.cat([part.prompt_lengths for part in parts]),
        response_lengths=torch.cat([part.response_lengths for part in parts]),
        **tables,
        columns=first.columns,
    )


def rows_of(position_B: Tensor, ascending_B: Tensor) -> list[int]:
    """Where each of `position_B` stands in `ascending_B`, which holds them all."""
    rows: list[int] = torch.searchsorted(ascending_B, position_B).tolist()
    return rows
