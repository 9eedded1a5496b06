"""From the samples of a micro-batch to a THD pack without padding."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor
from torch.nn import functional

from rlcore import INDEXER_TOPK, Column, TrainBatch, token_ranges
from rlcore_megatron.mcore.packs.sequences import keep_pieces
from rlcore_toolkit import PackLayout, prompt_trees

ON_HOST = frozenset({INDEXER_TOPK})
"""Columns that are too large for the device: a layer takes its part when it computes."""


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
    context-parallel ranks divide, which of its response tokens `rows` and `targets` are of. `ahead`: for a
    layer for multi-token prediction, where one is trained.

    `columns`: the declarations of the columns that the model reads; `inputs`: their entries, [T, …] for those
    of input tokens, and those of items sample after sample.
    """

    batch: TrainBatch
    tokens: Tensor
    position_ids: Tensor
    params: PackedSeqParams
    rows: Tensor
    targets: Tensor
    kept: Tensor | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    ahead: PackAhead | None = None


def pack(
    batch: TrainBatch,
    rows: Sequence[int],
    *,
    align: int = 1,
    device: torch.device | None = None,
    share: bool = False,
    columns: Collection[str] = (),
    ahead: bool = False,
) -> Pack:
    """The samples `rows` of `batch`, packed; an empty set is a pack of `align` padding tokens.

    `share`: neighbors of one group with the same prompt become a tree, their prompt computed once, and no
    sample brings its last token, which predicts nothing. The CPU's attention knows trees. `columns`: those
    that the model reads; a shared prompt has the entries of its first sample. `ahead`: with what a layer for
    multi-token prediction reads.
    """
    part = batch.select(rows)
    # Prompts of equal tokens may stand for different items.
    share = share and not part.per_item.keys() & columns
    assert bool((part.prompt_lengths > 0).all()), "the first response token is predicted by a prompt token"
    layout = prompt_trees(part) if share else _sequences(part)
    total = int(layout.source.numel())
    padding = align if total == 0 else -total % align
    params = _params(layout.extents, padding, device)
    if share:
        ends = total + padding
        keep_pieces(params, [*layout.pieces, (total, padding, 0, 0)] if padding else layout.pieces, ends)
    first = torch.cumsum(part.lengths, 0) - part.response_lengths
    return Pack(
        batch=part.reaching("all").to(device or part.tokens.device),
        tokens=functional.pad(part.tokens[layout.source], (0, padding))[None].to(device),
        position_ids=torch.cat([layout.positions, torch.arange(padding)])[None].to(device),
        params=params,
        rows=layout.rows.to(device),
        targets=part.tokens[token_ranges(first, part.response_lengths)].to(device),
        columns={name: part.columns[name] for name in columns},
        inputs={
            name: _input(part, name, layout.source, padding).to(None if name in ON_HOST else device)
            for name in columns
        },
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


def _input(part: TrainBatch, name: str, source: Tensor, padding: int) -> Tensor:
    """The entries of the column `name` for the tokens `source` and `padding` more, or all of its items."""
    column, entries = part.columns[name], part.tables[part.columns[name].per][name]
    if column.per == "item":
        return entries
    value = torch.tensor(column.padding, dtype=entries.dtype)
    return torch.cat([entries[source], value.expand(padding, *entries.shape[1:])])


def _sequences(part: TrainBatch) -> PackLayout:
    """The layout of whole samples, one after another."""
    starts = torch.cumsum(part.lengths, 0) - part.lengths
    return PackLayout(
        source=torch.arange(int(part.tokens.numel())),
        positions=token_ranges(torch.zeros_like(starts), part.lengths),
        rows=token_ranges(starts + part.prompt_lengths - 1, part.response_lengths),
        places=token_ranges(starts, part.lengths - 1),
        extents=part.lengths,
        pieces=[],
    )
