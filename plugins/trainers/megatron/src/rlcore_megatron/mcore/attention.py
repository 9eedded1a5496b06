"""Causal self-attention over packed sequences: no padding, no mask, grouped queries.

Rotary positions are applied here and not by megatron's SelfAttention, which cuts the pack into sequences once
for the queries and once for the keys of every layer: here the table is made once a forward.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore import token_ranges
from rlcore_megatron.mcore.context import Piece, Share
from rlcore_megatron.mcore.rotary import Rotary, rotate

_ATTRIBUTE = "rlcore_pack"


def keep_pieces(params: PackedSeqParams, pieces: Sequence[Piece], total: int) -> None:
    """Let attention read `pieces`, which fill the `total` tokens of a pack, with its `params`."""
    setattr(params, _ATTRIBUTE, Pack(params.cu_seqlens_q, int(params.max_seqlen_q), total, tuple(pieces)))


def keep_share(params: PackedSeqParams, share: Share) -> None:
    """Let attention, with `params` of a whole pack, compute what is of `share`."""
    starts = params.cu_seqlens_q
    pieces = share.pieces(starts.tolist())
    pack = Pack(starts, int(params.max_seqlen_q), share.total // share.ranks, pieces, share)
    setattr(params, _ATTRIBUTE, pack)


@dataclass(eq=False)
class Pack:
    """What all layers of one forward share about their pack of `total` tokens.

    `starts` int32 [N + 1]: where each of the N sequences starts, and `total`. `pieces`: of a pack with shared
    prompts; none where the sequences are all that there is. `share`: of a pack that is divided over ranks, of
    which `total` and `pieces` then are this rank's, and `starts` the whole's.
    """

    starts: Tensor
    longest: int
    total: int
    pieces: tuple[Piece, ...] = ()
    share: Share | None = None
    tables: dict[tuple[Rotary, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, params: PackedSeqParams, total: int) -> Pack:
        """The pack of `params`, made once and kept with it. Its sequences must fill the `total` tokens."""
        pack = getattr(params, _ATTRIBUTE, None)
        if pack is None:
            starts = params.cu_seqlens_q if params.cu_seqlens_q_padded is None else params.cu_seqlens_q_padded
            pack = cls(starts, int(params.max_seqlen_q), total)
            setattr(params, _ATTRIBUTE, pack)
        assert isinstance(pack, Pack)
        assert pack.total == total
        return pack

    def table(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each token's place in its sequence."""
        key = (rotary, dtype)
        if key not in self.tables:
            self.tables[key] = rotary.table(self.positions, dtype)
        return self.tables[key]

    @cached_property
    def positions(self) -> Tensor:
        """int64 [total], on the device of `starts`."""
        if self.pieces:
            return self._positions_of_pieces()
        places = torch.arange(self.total, device=self.starts.device)
        owner = torch.searchsorted(self.starts[1:].long(), places, right=True)
        return places - self.starts.long()[owner]

    @cached_property
    def parts(self) -> list[Pieces]:
        """The pieces of equal shape together, in the order of `order`."""
        return [
            Pieces(
                len(members),
                length,
                before,
                _runs([start for _, start in members], before, self.starts.device) if before else None,
            )
            for (length, before), members in self._groups
        ]

    @cached_property
    def order(self) -> Tensor | None:
        """int64 [total]: the tokens, part after part; None where they lie so already."""
        starts = torch.tensor([start for _, members in self._groups for start, _ in members])
        lengths = torch.tensor([length for (length, _), members in self._groups for _ in members])
        order = token_ranges(starts, lengths)
        assert order.numel() == self.total, "the pieces of a pack, padding included, must fill it"
        is_sorted = bool((order == torch.arange(self.total)).all())
        return None if is_sorted else order.to(self.starts.device)

    @cached_property
    def inverse(self) -> Tensor:
        """int64 [total]: undoes `order`."""
        assert self.order is not None
        return torch.empty_like(self.order).scatter_(0, self.order, torch.arange(self.total).to(self.order))

    @cached_property
    def seen(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of a shared pack: where its pieces end, where what they see ends, and int64 places of the latter.

        The ends are int32 [pieces + 1], from 0 on; a piece sees a run of the whole pack, up to itself.
        """
        pieces = torch.tensor(self.pieces, device=self.starts.device)
        _, lengths, before, count = pieces.unbind(1)
        ends_q, ends_k = (functional.pad(x.cumsum(0), (1, 0)).int() for x in (lengths, lengths + count))
        return ends_q, ends_k, token_ranges(before, lengths + count)

    @cached_property
    def _groups(self) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
        """((length, length before it), [(start, start before it)]) of the pieces of equal shape."""
        groups: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for start, length, before_start, before in self.pieces or self._whole():
            groups[length, before].append((start, before_start))
        return list(groups.items())

    def _whole(self) -> list[Piece]:
        starts = self.starts.tolist()
        return [(start, end - start, 0, 0) for start, end in itertools.pairwise(starts) if end > start]

    def _positions_of_pieces(self) -> Tensor:
        _, lengths, _, before = torch.tensor(sorted(self.pieces)).unbind(1)
        return token_ranges(before, lengths).to(self.starts.device)


@dataclass(frozen=True)
class Pieces:
    """`count` pieces of `length` tokens; each sees `before` more: those of `index` int64 [count * before]."""

    count: int
    length: int
    before: int
    index: Tensor | None


def _runs(starts: list[int], length: int, device: torch.device) -> Tensor:
    begin = torch.tensor(starts)
    return token_ranges(begin, torch.full_like(begin, length)).to(device)


def causal(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float) -> Tensor:
    """q [T, heads, D], k [T, groups, D], v [T, groups, V] → [T, heads, V].

    Each token sees its sequence up to itself.
    """
    width = v.shape[-1]
    if width < q.shape[-1]:  # kernels that keep no matrix of scores take one size for all three
        v = functional.pad(v, (0, q.shape[-1] - width))
    varlen = q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)
    return (_varlen if varlen else _by_length)(q, k, v, pack, scale)[..., :width]


def _varlen(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float) -> Tensor:
    """torch's flash attention over packed sequences: half precision on a GPU only."""
    from torch.nn.attention.varlen import varlen_attn

    ends_q = ends_k = pack.starts
    if pack.share is not None:
        ends_q, ends_k, index = pack.seen
        k, v = (pack.share.gather(x).index_select(0, index) for x in (k, v))
    settings: dict[str, Any] = {"scale": scale, "window_size": (-1, 0)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            settings["enable_gqa"] = True
        else:  # torch 2.11 may come without it
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = varlen_attn(q, k, v, ends_q, ends_k, pack.longest, pack.longest, **settings)
    assert isinstance(out, Tensor)  # a pair is returned only where `return_aux` asks for it
    return out


def _by_length(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float) -> Tensor:
    """One dense call for all pieces of a shape: neither padding nor a call a sequence."""
    order = pack.order
    whole_k, whole_v = k, v
    if pack.share is not None:
        whole_k, whole_v = pack.share.gather(k), pack.share.gather(v)
        # taken from the whole, so that every rank is part of the collective of its gradient
        places = pack.share.places.to(k.device)
        k, v = whole_k.index_select(0, places), whole_v.index_select(0, places)
    own_q, own_k, own_v = (q, k, v) if order is None else (x.index_select(0, order) for x in (q, k, v))
    out, start = [], 0
    for part in pack.parts:
        end = start + part.count * part.length
        keys, values = _seen(whole_k, own_k[start:end], part), _seen(whole_v, own_v[start:end], part)
        out.append(_dense(own_q[start:end], keys, values, part, scale))
        start = end
    whole = out[0] if len(out) == 1 else torch.cat(out)
    return whole if order is None else whole.index_select(0, pack.inverse)


def _seen(whole: Tensor, own: Tensor, part: Pieces) -> Tensor:
    """[count, groups, before + length, D]: keys or values of what a piece sees."""
    mine = own.view(part.count, part.length, *own.shape[1:])
    if part.index is None:
        return mine.transpose(1, 2)
    shared = whole.index_select(0, part.index).view(part.count, part.before, *own.shape[1:])
    return torch.cat((shared, mine), dim=1).transpose(1, 2)


def _dense(q: Tensor, k: Tensor, v: Tensor, part: Pieces, scale: float) -> Tensor:
    """q [count * length, heads, D] → the same."""
    mask = None
    if part.before:
        size = (part.length, part.before + part.length)
        mask = torch.ones(size, dtype=torch.bool, device=q.device).tril(part.before)
    out = functional.scaled_dot_product_attention(
        q.view(part.count, part.length, *q.shape[1:]).transpose(1, 2),
        k,
        v,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.transpose(1, 2).flatten(0, 1)


class CoreAttention(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """What SelfAttention calls between its linear layers."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        *,
        rotary: Rotary,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        assert config.attention_dropout == 0.0
        self.rotary = rotary
        self.scale = 1.0 / math.sqrt(config.kv_channels) if softmax_scale is None else softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """query [T, heads, D], key and value [T, groups, D] → [T, heads * D]."""
        assert packed_seq_params is not None
        assert attention_mask is None
        assert attention_bias is None
        pack = Pack.of(packed_seq_params, query.shape[0])
        table = pack.table(self.rotary, query.dtype)
        query, key = (rotate(x, *table, self.rotary.interleaved) for x in (query, key))
        return causal(query, key, value, pack, self.scale).flatten(-2)
