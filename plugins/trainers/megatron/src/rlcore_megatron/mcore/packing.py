"""From samples to packed micro-batches: balanced bins under a token budget, and THD packs without padding."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.nn import functional

from rlcore import ROUTED_EXPERTS, DataError, TrainBatch, token_ranges
from rlcore_megatron.mcore.attention import keep_pieces
from rlcore_megatron.mcore.context import Piece

Bins = list[list[int]]
"""Sample indices, ascending within each bin."""


def check_longest(lengths: Sequence[int], longest: int | None) -> None:
    """DataError where a sample has more tokens than the model takes."""
    if longest is not None and lengths and max(lengths) > longest:
        raise DataError(f"A sample has {max(lengths)} tokens, but the model takes at most {longest}.")


def micro_batches(lengths: Sequence[int], budget: int, costs: Sequence[float] = ()) -> Bins:
    """Bins of at most `budget` tokens each; deterministic. What is longer gets a bin of its own.

    They have nearly equal numbers of tokens, or as nearly equal `costs` as the budget allows.
    """
    order = _longest_first(lengths)
    bins = _first_fit(lengths, order, budget)
    even = _spread_costs(lengths, costs, len(bins), budget) if costs else _spread(lengths, order, len(bins))
    # Bins of equal sums may exceed the budget, which those of first fit keep.
    fits = all(len(bin) <= 1 or sum(lengths[i] for i in bin) <= budget for bin in even)
    return even if fits else [sorted(bin) for bin in bins]


def balance(lengths: Sequence[float], ranks: int) -> Bins:
    """One set of samples a data-parallel rank, with nearly equal token counts; deterministic."""
    return _spread(lengths, _longest_first(lengths), ranks)


def equal_bins(bins: Bins, lengths: Sequence[float], count: int) -> Bins:
    """`bins` divided further, so that there are `count`; empty ones where no bin can be divided.

    `lengths`: what the parts of a bin get equally much of, tokens or another cost.
    """
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


def _longest_first(lengths: Sequence[float]) -> list[int]:
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


def _spread_costs(lengths: Sequence[int], costs: Sequence[float], count: int, budget: int) -> Bins:
    """The costliest remaining sample goes to the cheapest bin that has room for it, or else to a new one."""
    bins: Bins = [[] for _ in range(count)]
    loads, room = [0.0] * count, [budget] * count
    for i in _longest_first(costs):
        fitting = [place for place in range(len(bins)) if not bins[place] or room[place] >= lengths[i]]
        if not fitting:
            bins, loads, room = [*bins, []], [*loads, 0.0], [*room, budget]
            fitting = [len(bins) - 1]
        place = min(fitting, key=lambda place: (loads[place], len(bins[place]), place))
        bins[place].append(i)
        loads[place], room[place] = loads[place] + costs[i], room[place] - lengths[i]
    return [sorted(bin) for bin in bins]


def _spread(lengths: Sequence[float], order: Sequence[int], count: int) -> Bins:
    """The longest remaining sample goes to the lightest bin; among equals, to the one with fewest samples."""
    bins: Bins = [[] for _ in range(count)]
    heap = [(0.0, 0, place) for place in range(count)]
    for i in order:
        load, size, place = heap[0]
        bins[place].append(i)
        heapq.heapreplace(heap, (load + lengths[i], size + 1, place))
    return [sorted(bin) for bin in bins]


@dataclass(frozen=True, kw_only=True)
class PackAhead:
    """The samples of a pack as a layer for multi-token prediction reads them, each without its last token.

    Position i of a sample has the hidden state of token i and the embedding of token i + 1, and predicts
    token i + 2. `places` int64 [T']: where in the pack token i stands; `tokens` int64 [T']: token i + 1;
    `params`: where each sample starts (THD). `rows`, `targets` int64 [m]: the positions that predict what is
    learned, and what they predict. T' is padded like T of the pack.
    """

    places: Tensor
    tokens: Tensor
    params: PackedSeqParams
    rows: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A micro-batch as the model reads it.

    `tokens`, `position_ids` int64 [1, T]; `params`: where each sequence starts (THD). `rows` int64 [n]: the
    rows of the logits that predict the n response tokens, sample after sample; `targets` int64 [n]: those
    tokens. T is padded with one sequence of zeros to a multiple of `align`. `kept` int64 [n]: of a pack that
    context-parallel ranks divide, which of its response tokens `rows` and `targets` are of. `routes` int16
    [T, layers, K]: the experts that each token goes to, where they are replayed. `ahead`: for a layer for
    multi-token prediction, where one is trained.
    """

    batch: TrainBatch
    tokens: Tensor
    position_ids: Tensor
    params: PackedSeqParams
    rows: Tensor
    targets: Tensor
    kept: Tensor | None = None
    routes: Tensor | None = None
    ahead: PackAhead | None = None


def pack(
    batch: TrainBatch,
    rows: Sequence[int],
    *,
    align: int = 1,
    device: torch.device | None = None,
    share: bool = False,
    replay: bool = False,
    ahead: bool = False,
) -> Pack:
    """The samples `rows` of `batch`, packed; an empty set is a pack of `align` padding tokens.

    `share`: neighbors of one group with the same prompt become a tree, their prompt computed once, and no
    sample brings its last token, which predicts nothing. The CPU's attention knows trees. `replay`: with the
    experts that the engine chose, which of a shared prompt are those of the first sample. `ahead`: with what
    a layer for multi-token prediction reads.
    """
    part = batch.select(rows)
    assert bool((part.prompt_lengths > 0).all()), "the first response token is predicted by a prompt token"
    layout = _trees(part) if share else _sequences(part)
    total = int(layout.source.numel())
    padding = align if total == 0 else -total % align
    params = _params(layout.extents, padding, device)
    if share:
        ends = total + padding
        keep_pieces(params, [*layout.pieces, (total, padding, 0, 0)] if padding else layout.pieces, ends)
    first = torch.cumsum(part.lengths, 0) - part.response_lengths
    return Pack(
        batch=_to(part, device),
        tokens=functional.pad(part.tokens[layout.source], (0, padding))[None].to(device),
        position_ids=torch.cat([layout.positions, torch.arange(padding)])[None].to(device),
        params=params,
        rows=layout.rows.to(device),
        targets=part.tokens[token_ranges(first, part.response_lengths)].to(device),
        routes=_routes(part, layout.source, padding).to(device) if replay else None,
        ahead=_ahead(part, layout.places, align, device) if ahead else None,
    )


def _params(extents: Tensor, padding: int, device: torch.device | None) -> PackedSeqParams:
    extents = torch.cat([extents, torch.tensor([padding])]) if padding else extents
    cu_seqlens = functional.pad(torch.cumsum(extents, 0), (1, 0)).to(torch.int32).to(device)
    longest = int(extents.max())
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )


def learned_ahead(part: TrainBatch) -> Tensor:
    """Which response tokens a layer for multi-token prediction learns, bool [R].

    All that the policy learns but the first of each response, which is never drafted: the prompt's pass
    makes it.
    """
    responses = part.response_lengths
    is_learned = part.per_token["loss_mask"] > 0
    is_learned[(torch.cumsum(responses, 0) - responses)[responses > 0]] = False
    return is_learned


def _ahead(part: TrainBatch, places: Tensor, align: int, device: torch.device | None) -> PackAhead:
    lengths = part.lengths - 1
    first = torch.cumsum(part.lengths, 0) - part.lengths
    starts = torch.cumsum(lengths, 0) - lengths
    padding = align if places.numel() == 0 else -places.numel() % align
    is_learned = learned_ahead(part)
    # a response token is predicted two positions before its own, which the first one may not have
    rows = token_ranges(starts + part.prompt_lengths - 2, part.response_lengths)[is_learned]
    response = token_ranges(first + part.prompt_lengths, part.response_lengths)[is_learned]
    tokens = part.tokens[token_ranges(first + 1, lengths)]
    return PackAhead(
        places=functional.pad(places, (0, padding)).to(device),
        tokens=functional.pad(tokens, (0, padding)).to(device),
        params=_params(lengths[lengths > 0], padding, device),
        rows=rows.to(device),
        targets=part.tokens[response].to(device),
    )


def _routes(part: TrainBatch, source: Tensor, padding: int) -> Tensor:
    """Of the pack's tokens; padding, which nobody reads, goes to the first experts."""
    routes = part.per_input[ROUTED_EXPERTS]
    first = torch.arange(routes.shape[-1], dtype=routes.dtype)
    return torch.cat([routes[source], first.expand(padding, *routes.shape[1:])])


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """`source` int64 [T]: which of the batch's tokens stands where; `positions` [T]; `rows` [n].

    `places` int64: where each sample's tokens but its last stand, sample after sample.
    `extents` [N]: tokens of each sequence or tree. `pieces`: (start, length, start of what is seen before it,
    its length).
    """

    source: Tensor
    positions: Tensor
    rows: Tensor
    places: Tensor
    extents: Tensor
    pieces: list[Piece]


def _sequences(part: TrainBatch) -> _Layout:
    """Sample after sample, whole."""
    starts = torch.cumsum(part.lengths, 0) - part.lengths
    return _Layout(
        source=torch.arange(int(part.tokens.numel())),
        positions=token_ranges(torch.zeros_like(starts), part.lengths),
        rows=token_ranges(starts + part.prompt_lengths - 1, part.response_lengths),
        places=token_ranges(starts, part.lengths - 1),
        extents=part.lengths,
        pieces=[],
    )


def _trees(part: TrainBatch) -> _Layout:
    """A trunk for each run of samples with one prompt, then a branch for each, without its last token.

    A sample alone is a trunk that goes on into its response.
    """
    prompts, responses = part.prompt_lengths, part.response_lengths
    is_first = _first_of_tree(part)
    tree = torch.cumsum(is_first, 0) - 1
    members = torch.bincount(tree, minlength=int(is_first.sum()))
    is_alone = (members == 1)[tree]
    own = (responses - 1).clamp(min=0)
    trunk = torch.where(is_first, prompts + torch.where(is_alone, own, 0), 0)
    branch = torch.where(is_alone, 0, own)
    lengths = torch.stack([trunk, branch], dim=1).flatten()
    starts = torch.cumsum(lengths, 0) - lengths
    trunk_start = starts[0::2][is_first][tree]
    branch_start = torch.where(is_alone, trunk_start + prompts, starts[1::2])
    first = torch.cumsum(part.lengths, 0) - part.lengths
    sources = torch.stack([first, first + prompts], dim=1).flatten()
    offsets = torch.stack([torch.zeros_like(prompts), prompts], dim=1).flatten()
    before = torch.stack([torch.zeros_like(prompts), prompts], dim=1).flatten()
    before_start = torch.stack([torch.zeros_like(prompts), trunk_start], dim=1).flatten()
    table = torch.stack([starts, lengths, before_start, before], dim=1)[lengths > 0]
    read = torch.stack([prompts - (responses == 0).long(), own], dim=1).flatten()
    # The first response token is predicted by the prompt's last token, the others by the branch.
    rows = token_ranges(branch_start - 1, responses)
    rows[(torch.cumsum(responses, 0) - responses)[responses > 0]] = (trunk_start + prompts - 1)[responses > 0]
    return _Layout(
        source=token_ranges(sources, lengths),
        positions=token_ranges(offsets, lengths),
        rows=rows,
        places=token_ranges(torch.stack([trunk_start, branch_start], dim=1).flatten(), read),
        extents=torch.zeros_like(members).index_add_(0, tree, trunk + branch),
        pieces=[(a, b, c, d) for a, b, c, d in table.tolist()],
    )


_LEAST_SPARED = 1 / 16
"""Of a tree's tokens. To spare fewer costs more time than it saves: a branch reads copies of its prompt's
keys and values, and through a mask."""


def _first_of_tree(part: TrainBatch) -> Tensor:
    """bool [B]: samples whose prompt or group is not that of the sample before, or that spare too little."""
    tokens, ends = part.tokens.numpy(), torch.cumsum(part.lengths, 0)
    starts, stops = (ends - part.lengths).tolist(), (ends - part.response_lengths).tolist()
    groups = part.per_sample["group"].tolist() if "group" in part.per_sample else range(len(part))
    keys = [(g, tokens[a:b].tobytes()) for g, a, b in zip(groups, starts, stops, strict=True)]
    differs = [not place or key != keys[place - 1] for place, key in enumerate(keys)]
    is_first = torch.tensor(differs, dtype=torch.bool)
    tree = torch.cumsum(is_first, 0) - 1
    none = torch.zeros_like(part.lengths)
    spared = none.index_add(0, tree, torch.where(is_first, 0, part.prompt_lengths))
    whole = none.index_add(0, tree, part.lengths)
    return is_first | (spared < _LEAST_SPARED * whole)[tree]


def _to(batch: TrainBatch, device: torch.device | None) -> TrainBatch:
    if device is None or device.type == "cpu":
        return batch
    return TrainBatch(
        tokens=batch.tokens.to(device),
        prompt_lengths=batch.prompt_lengths.to(device),
        response_lengths=batch.response_lengths.to(device),
        per_token={name: column.to(device) for name, column in batch.per_token.items()},
        per_sample={name: column.to(device) for name, column in batch.per_sample.items()},
        per_input=batch.per_input,  # read where packs are made
    )
