"""From samples to packed micro-batches: balanced bins under a token budget, and THD packs without padding."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from rlcore.data.batch import TrainBatch
from rlcore.errors import DataError

Bins = list[list[int]]
"""Sample indices, ascending within each bin."""


def micro_batches(lengths: Sequence[int], budget: int, longest: int | None = None) -> Bins:
    """Balanced bins of at most `budget` tokens each; deterministic.

    A sample longer than `budget` gets a bin of its own; one longer than `longest` is a DataError.
    """
    if longest is not None and lengths and max(lengths) > longest:
        raise DataError(f"A sample has {max(lengths)} tokens, but the model takes at most {longest}.")
    order = _longest_first(lengths)
    bins = _first_fit(lengths, order, budget)
    even = _spread(lengths, order, len(bins))
    fits = all(len(bin) <= 1 or sum(lengths[i] for i in bin) <= budget for bin in even)
    return even if fits else [sorted(bin) for bin in bins]


def balance(lengths: Sequence[int], ranks: int) -> Bins:
    """One set of samples a data-parallel rank, with nearly equal token counts; deterministic."""
    return _spread(lengths, _longest_first(lengths), ranks)


def equal_bins(bins: Bins, lengths: Sequence[int], count: int) -> Bins:
    """`bins` divided further, so that there are `count`; empty ones where no bin can be divided."""
    bins = list(bins)
    while len(bins) < count:
        heaviest = max(
            (b for b in bins if len(b) > 1), key=lambda b: sum(lengths[i] for i in b), default=None
        )
        if heaviest is None:
            bins.append([])
            continue
        place = bins.index(heaviest)
        parts = balance([lengths[i] for i in heaviest], 2)
        bins[place : place + 1] = [[heaviest[i] for i in part] for part in parts]
    return bins


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))


def _first_fit(lengths: Sequence[int], order: Sequence[int], budget: int) -> Bins:
    bins: Bins = []
    room: list[int] = []
    for i in order:
        place = next((b for b, left in enumerate(room) if lengths[i] <= left), None)
        if place is None:
            bins.append([i])
            room.append(budget - lengths[i])
        else:
            bins[place].append(i)
            room[place] -= lengths[i]
    return bins


def _spread(lengths: Sequence[int], order: Sequence[int], count: int) -> Bins:
    """The longest remaining sample goes to the lightest bin; among equals, to the one with fewest samples."""
    bins: Bins = [[] for _ in range(count)]
    heap = [(0, 0, place) for place in range(count)]
    for i in order:
        load, size, place = heap[0]
        bins[place].append(i)
        heapq.heapreplace(heap, (load + lengths[i], size + 1, place))
    return [sorted(bin) for bin in bins]


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A micro-batch as the model reads it.

    `tokens`, `position_ids` int64 [1, T]; `params`: where each sequence starts (THD). `rows` int64 [n]: the
    rows of the logits that predict the n response tokens, sample after sample; `targets` int64 [n]: those
    tokens. T is the sum of the lengths, padded with one sequence of zeros to a multiple of `align`.
    """

    batch: TrainBatch
    tokens: Tensor
    position_ids: Tensor
    params: PackedSeqParams
    rows: Tensor
    targets: Tensor


def pack(
    batch: TrainBatch, rows: Sequence[int], *, align: int = 1, device: torch.device | None = None
) -> Pack:
    """The samples `rows` of `batch`, packed; an empty set is a pack of `align` padding tokens."""
    part = batch.select(rows)
    lengths = part.lengths
    assert bool((part.prompt_lengths > 0).all()), "the first response token is predicted by a prompt token"
    total = int(part.tokens.numel())
    padding = align if total == 0 else -total % align
    segments = torch.cat([lengths, torch.tensor([padding])]) if padding else lengths
    ends = torch.cumsum(segments, 0)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32)
    position_ids = torch.arange(total + padding) - torch.repeat_interleave(ends - segments, segments)
    tokens = torch.cat([part.tokens, torch.zeros(padding, dtype=torch.int64)]) if padding else part.tokens
    starts = (ends - segments)[: len(part)]
    response_ends = torch.cumsum(part.response_lengths, 0)
    offsets = starts + part.prompt_lengths - 1 - (response_ends - part.response_lengths)
    count = int(part.response_lengths.sum())
    logits_rows = torch.arange(count) + torch.repeat_interleave(offsets, part.response_lengths)
    longest = int(segments.max())
    targets = tokens[logits_rows + 1]
    cu_seqlens = cu_seqlens.to(device)
    return Pack(
        batch=_to(part, device),
        tokens=tokens[None].to(device),
        position_ids=position_ids[None].to(device),
        params=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_kv=cu_seqlens,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        ),
        rows=logits_rows.to(device),
        targets=targets.to(device),
    )


def _to(batch: TrainBatch, device: torch.device | None) -> TrainBatch:
    if device is None or device.type == "cpu":
        return batch
    return TrainBatch(
        tokens=batch.tokens.to(device),
        prompt_lengths=batch.prompt_lengths.to(device),
        response_lengths=batch.response_lengths.to(device),
        per_token={name: column.to(device) for name, column in batch.per_token.items()},
        per_sample={name: column.to(device) for name, column in batch.per_sample.items()},
    )
