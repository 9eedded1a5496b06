"""Sparse attention: each query sees the keys that an indexer chose (DeepSeek-V3.2, arXiv:2512.02556).

A choice is int32 [T, K]: for each query the positions of its keys in their sequence, -1 where it sees fewer
than K. Shape suffixes: T queries of a pack, W views of n queries and S keys, H heads, D the size of a head.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.sequences import Sequences, View

_ELEMENTS = 2**26
"""Most numbers of a matrix of scores that is made at once."""


def index_scores(q_WnHD: Tensor, k_WSD: Tensor, weight_WnH: Tensor) -> Tensor:
    """fp32 [W, n, S]: Σ_h w_h · ReLU(q_h · k / √D). All heads share one key."""
    products = torch.einsum("wnhd,wsd->wnhs", q_WnHD.float(), k_WSD.float()) * q_WnHD.shape[-1] ** -0.5
    return torch.einsum("wnh,wnhs->wns", weight_WnH.float(), functional.relu(products))


def choose(q_THD: Tensor, k_SD: Tensor, weight_TH: Tensor, pack: Sequences, top: int, run: range) -> Tensor:
    """The `top` best keys of the queries of `run`, which T are; of equal scores the earlier key.

    `k_SD`: of the whole pack. Where a query sees no more than `top` keys, it sees all.
    """
    choice = torch.full((len(q_THD), min(top, pack.reach)), -1, dtype=torch.int32, device=q_THD.device)
    for view, rows, sees in _slices(pack, run, q_THD.shape[1]):
        if view.keys.shape[1] <= top:
            places = torch.where(sees, torch.arange(view.keys.shape[1], device=sees.device), -1)
            best = places.expand(len(rows), -1, -1)
        else:
            keys = _rows(k_SD, view.keys)
            best = best_keys(index_scores(_rows(q_THD, rows), keys, _rows(weight_TH, rows)), sees, top)
        choice[rows, : best.shape[-1]] = best.int()
    return choice


def best_keys(scores_WnS: Tensor, sees_nS: Tensor, top: int) -> Tensor:
    """int64 [W, n, `top`]: the places of the highest scores among the keys that a query sees, then -1."""
    hidden = scores_WnS.masked_fill(~sees_nS, -torch.inf)
    # A stable order: torch.topk takes any of two equal scores, which a ReLU makes often.
    order = hidden.sort(dim=-1, descending=True, stable=True).indices[..., :top]
    return torch.where(sees_nS.expand_as(scores_WnS).gather(-1, order), order, -1)


def replayed_keys(bits_TW: Tensor, width: int) -> Tensor:
    """The choice int32 [T, `width`] of those positions whose bits are set; the first key where none is.

    Bit b of byte w stands for position 8w + b.
    """
    is_chosen = (bits_TW[:, :, None] & (1 << torch.arange(8)).to(bits_TW)).flatten(1) > 0
    rows, keys = is_chosen.nonzero(as_tuple=True)
    counts = is_chosen.sum(1)
    slots = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    choice = torch.full((len(bits_TW), width), -1, dtype=torch.int32, device=bits_TW.device)
    choice[:, 0] = 0
    choice[rows, slots] = keys.int()
    return choice


def attend(q_THD: Tensor, k: Tensor, v: Tensor, choice_TK: Tensor, pack: Sequences, scale: float) -> Tensor:
    """k [T, H, D], v [T, H, V] → [T, H, V]: softmax attention of each query over its chosen keys alone."""
    width, size = v.shape[-1], q_THD.shape[-1]
    v = functional.pad(v, (0, size - width))  # kernels that keep no matrix of scores take one size for all
    k, v = _whole(k, pack.share), _whole(v, pack.share)
    places, out = [], []
    for view, rows, _ in _slices(pack, range(pack.total), 1):
        query = _rows(q_THD, rows).transpose(1, 2)
        key, value = (_rows(x, view.keys).transpose(1, 2) for x in (k, v))
        mask = _chosen(choice_TK[rows].long(), view.keys.shape[1])
        part = functional.scaled_dot_product_attention(query, key, value, mask[:, None], scale=scale)
        places.append(rows.flatten())
        out.append(part.transpose(1, 2).flatten(0, 1))
    return torch.cat(out).index_select(0, torch.cat(places).argsort())[..., :width]


def attention_shares(q_THD: Tensor, k: Tensor, choice_TK: Tensor, pack: Sequences, scale: float) -> Tensor:
    """fp32 [T, K]: what these heads' attention, summed, gives to each chosen key; 0 beyond them."""
    k = _whole(k, pack.share)
    shares = torch.zeros(choice_TK.shape, device=q_THD.device)
    for view, rows, _ in _slices(pack, range(pack.total), q_THD.shape[1]):
        query, key = _rows(q_THD, rows).float(), _rows(k, view.keys).float()
        products = torch.einsum("wnhd,wshd->wnhs", query, key) * scale
        chosen = choice_TK[rows].long()
        places = chosen.clamp(min=0)[:, :, None].expand(-1, -1, q_THD.shape[1], -1)
        of_chosen = products.gather(-1, places).masked_fill((chosen < 0)[:, :, None], -torch.inf)
        shares[rows] = of_chosen.softmax(-1).sum(2)
    return shares


def index_divergence(
    q_THD: Tensor,
    k_SD: Tensor,
    weight_TH: Tensor,
    shares_TK: Tensor,
    choice_TK: Tensor,
    pack: Sequences,
    run: range,
) -> Tensor:
    """fp32 [T]: KL(p ‖ softmax of the index scores) over the chosen keys, p the normed `shares_TK`.

    The gradient is the indexer's. T are the queries of `run`.
    """
    places, out = [], []
    for view, rows, _ in _slices(pack, run, q_THD.shape[1]):
        keys = _rows(k_SD, view.keys)
        scores = index_scores(_rows(q_THD, rows), keys, _rows(weight_TH, rows))
        chosen, shares = choice_TK[rows].long(), shares_TK[rows]
        logits = scores.gather(-1, chosen.clamp(min=0)).masked_fill(chosen < 0, torch.finfo(scores.dtype).min)
        target = shares / shares.sum(-1, keepdim=True)
        terms = torch.special.xlogy(target, target) - target * logits.log_softmax(-1)
        places.append(rows.flatten())
        out.append(terms.sum(-1).flatten())
    return torch.cat(out).index_select(0, torch.cat(places).argsort())


def _slices(pack: Sequences, run: range, heads: int) -> Iterator[tuple[View, Tensor, Tensor]]:
    """(view, int64 [W, n] some of its queries, bool [n, S] which keys they see), in bounded sizes."""
    for view in pack.views(run):
        keys = view.keys.shape[1]
        step = max(1, _ELEMENTS // (view.keys.numel() * heads))
        for low in range(0, view.queries.shape[1], step):
            rows = view.queries[:, low : low + step]
            last = view.first + low + torch.arange(rows.shape[1], device=rows.device)
            yield view, rows, torch.arange(keys, device=rows.device) <= last[:, None]


def _chosen(choice_WnK: Tensor, keys: int) -> Tensor:
    """bool [W, n, keys]: the keys that were chosen."""
    places = torch.where(choice_WnK < 0, choice_WnK[..., :1], choice_WnK)  # the first is a key always
    mask = torch.zeros(*places.shape[:-1], keys, dtype=torch.bool, device=places.device)
    return mask.scatter_(-1, places, True)


def _rows(x: Tensor, places: Tensor) -> Tensor:
    """x [T, …] at `places` [W, n] → [W, n, …]."""
    return x.index_select(0, places.flatten()).view(*places.shape, *x.shape[1:])


def _whole(x: Tensor, share: Share | None) -> Tensor:
    return x if share is None else share.gather(x)
