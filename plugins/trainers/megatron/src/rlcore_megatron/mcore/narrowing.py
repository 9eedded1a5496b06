"""A pack under context parallelism: this rank's part of it, and its values put together again."""

from __future__ import annotations

from dataclasses import replace

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import Tensor

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.attention import keep_share
from rlcore_megatron.mcore.context import Share
from rlcore_megatron.mcore.packing import Pack, PackAhead


def narrow(part: Pack) -> Pack:
    """This rank's part of a pack: its tokens, and the rows that predict response tokens among them."""
    share = Share.mine(int(part.tokens.shape[1]))
    if share is None:
        return part
    places = share.places.to(part.tokens.device)
    rows, kept = _own_rows(part.rows, share)
    return replace(
        part,
        tokens=part.tokens[:, places],
        position_ids=part.position_ids[:, places],
        params=shared_params(part.params, share),
        rows=rows,
        targets=part.targets[kept],
        kept=kept,
        routes=None if part.routes is None else part.routes[places],
        ahead=None if part.ahead is None else _narrow_ahead(part.ahead),
    )


def _narrow_ahead(ahead: PackAhead) -> PackAhead:
    """The rank's part of the positions; its `places` are still those of the whole pack."""
    share = Share.mine(int(ahead.tokens.numel()))
    assert share is not None
    mine = share.places.to(ahead.tokens.device)
    rows, kept = _own_rows(ahead.rows, share)
    return PackAhead(
        places=ahead.places[mine],
        tokens=ahead.tokens[mine],
        params=shared_params(ahead.params, share),
        rows=rows,
        targets=ahead.targets[kept],
    )


def _own_rows(rows: Tensor, share: Share) -> tuple[Tensor, Tensor]:
    """Rows of a whole pack → those of this rank, counted within its part, and which of all they are."""
    own = torch.full((share.total,), -1, device=rows.device)
    own[share.places.to(rows.device)] = torch.arange(share.places.numel(), device=rows.device)
    kept = (own[rows] >= 0).nonzero()[:, 0]
    return own[rows][kept], kept


def shared_params(params: PackedSeqParams, share: Share) -> PackedSeqParams:
    """`params`, of which attention reads the pieces of `share`."""
    own = replace(params)
    keep_share(own, share)
    return own


def whole(values: Tensor, part: Pack) -> Tensor:
    """Values [m, …] of the rows of a `narrow` pack → those of all n response tokens, [n, …], on every rank.

    The gradient of each goes back to the rank that made it, once: every rank computes the same loss.
    """
    if part.kept is None:
        return values
    count = int(part.batch.response_lengths.sum())
    out = values.new_zeros(count, *values.shape[1:]).index_put((part.kept,), values)
    summed = reduce_from_tensor_model_parallel_region(out, group=parallel.context_group())
    assert isinstance(summed, Tensor)
    return summed
