"""A pack under context parallelism: this rank's part of it, and its values put together again."""

from dataclasses import replace

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import Tensor

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.packing import Pack, PackAhead
from rlcore_megatron.mcore.packs.sequences import keep_share


def narrow(part: Pack) -> Pack:
    """This rank's part of a pack: its tokens, and the rows that predict response tokens among them."""
    share = Share.of_process(int(part.tokens.shape[1]))
    if share is None:
        return part
    places = share.places.to(part.tokens.device)
    rows, kept = _rank_rows(part.rows, share)
    return replace(
        part,
        tokens=part.tokens[:, places],
        position_ids=part.position_ids[:, places],
        params=shared_params(part.params, share),
        rows=rows,
        targets=part.targets[kept],
        kept=kept,
        inputs={
            name: tensor[places.to(tensor.device)] if part.columns[name].is_sliced else tensor
            for name, tensor in part.inputs.items()
        },
        ahead=None if part.ahead is None else _narrow_ahead(part.ahead),
    )


def _narrow_ahead(ahead: PackAhead) -> PackAhead:
    """The rank's part of the positions; its `places` are still those of the whole pack."""
    share = Share.of_process(int(ahead.tokens.numel()))
    assert share is not None
    places = share.places.to(ahead.tokens.device)
    rows, kept = _rank_rows(ahead.rows, share)
    return PackAhead(
        places=ahead.places[places],
        tokens=ahead.tokens[places],
        params=shared_params(ahead.params, share),
        rows=rows,
        targets=ahead.targets[kept],
    )


def _rank_rows(rows: Tensor, share: Share) -> tuple[Tensor, Tensor]:
    """Rows of a whole pack → those of this rank, counted within its part, and which of all they are."""
    place = torch.full((share.total,), -1, device=rows.device)
    place[share.places.to(rows.device)] = torch.arange(share.places.numel(), device=rows.device)
    kept = (place[rows] >= 0).nonzero()[:, 0]
    return place[rows][kept], kept


def shared_params(params: PackedSeqParams, share: Share) -> PackedSeqParams:
    """`params`, of which attention reads the pieces of `share`."""
    copy = replace(params)
    keep_share(copy, share)
    return copy


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
