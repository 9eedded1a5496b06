"""The gated delta rule over packed sequences, in chunks (Gated DeltaNet, arXiv:2412.06464).

In Kimi Delta Attention (arXiv:2510.26692) each channel of a key fades for itself.

Shape suffixes: T tokens of the pack, K key heads, H value heads (a multiple of K), N chunks, C tokens of a
chunk; D the size of a key, V that of a value; F = D where each channel fades for itself, else 1.
"""

import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.packs.chunks import Chunks, Level


def gated_delta_rule(
    q_TKD: Tensor, k_TKD: Tensor, v_THV: Tensor, decay_THF: Tensor, beta_TH: Tensor, chunks: Chunks
) -> Tensor:
    """float32 [T, H, V]: what the state of each value head gives to each query.

    For each token of a sequence, from a state S = 0 [D, V]: S ← e^decay · S; S ← S + k (beta (v - Sᵀk))ᵀ; the
    output is Sᵀq. `decay_THF` ≤ 0. Value head h reads key head h // (H / K). All in float32.
    """
    q, k, v, decay, beta = (
        _chunked(x.float(), chunks) for x in (q_TKD, k_TKD, v_THV, decay_THF, beta_TH[..., None])
    )
    groups = v.shape[1] // k.shape[1]
    total_NHCF = decay.cumsum(-2)
    products = _faded_by_head if total_NHCF.shape[-1] == 1 else _faded_by_channel
    kk_NHCC, inside_NHCC = products(q, k, total_NHCF, groups)
    grown, k_H = total_NHCF.exp(), _expanded(k, groups)
    # Within a chunk, the corrections of its tokens depend on one another: (1 + A) u = βv, A strictly lower.
    right = torch.cat((beta * v, beta * k_H * grown), dim=-1)
    solved = torch.linalg.solve_triangular(beta * kk_NHCC, right, upper=False, unitriangular=True)
    new, read = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    asks = _expanded(q, groups) * grown
    writes = k_H * (total_NHCF[..., -1:, :] - total_NHCF).exp()
    fades = total_NHCF[..., -1, :, None].exp()
    out = _scan(chunks.levels, new, read, asks, inside_NHCC, writes, fades)
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat.index_select(0, chunks.inverse)


def _faded_by_head(q: Tensor, k: Tensor, total_NHC1: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """[N, H, C, C] of keys and of queries with keys: k_i·k_j e^(total_i - total_j) for j ≤ i, else 0."""
    total = total_NHC1[..., 0]
    lower = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=q.device).tril()
    # The exponent is cut before exp: above the diagonal it is positive and may overflow.
    fading = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    # Products of queries and keys are those of the key heads; what differs by value head comes after.
    fading = fading.unflatten(1, (-1, groups))
    kk, qk = ((x @ k.mT)[:, :, None] * fading for x in (k, q))
    return kk.flatten(1, 2), qk.flatten(1, 2)


def _faded_by_channel(q: Tensor, k: Tensor, total_NHCD: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The same where Σ_d k_id k_jd e^(total_id - total_jd) is no product of two sums.

    Runs of 1, 2, 4 … tokens are joined in pairs. Between the two of a pair the exponent is split at the last
    token of the first, so that no part of it is positive.
    """
    size, tokens = 1, k.shape[2]
    missing = (1 << (tokens - 1).bit_length()) - tokens
    k, q = (functional.pad(_expanded(x, groups), (0, 0, 0, missing)) for x in (k, q))
    total = torch.cat((total_NHCD, total_NHCD[..., -1:, :].expand(-1, -1, missing, -1)), dim=2)
    both = torch.stack((k, q), dim=3)
    found = (both * k[..., None, :]).sum(-1)[..., None, :, None]  # [N, H, runs, tokens, both, tokens]
    while size < k.shape[2]:
        (first, _), (early, late) = (x.unflatten(2, (-1, 2, size)).unbind(3) for x in (k, total))
        edge = early[..., -1:, :]
        rows = both.unflatten(2, (-1, 2, size))[:, :, :, 1] * (late - edge).exp()[..., None, :]
        across = rows.flatten(3, 4) @ (first * (edge - early).exp()).mT
        above, below = found.unflatten(2, (-1, 2)).unbind(3)
        below = torch.cat((across.unflatten(3, (size, 2)), below), dim=-1)
        found = torch.cat((functional.pad(above, (0, size)), below), dim=3)
        size *= 2
    kk, qk = found[:, :, 0, :tokens, :, :tokens].unbind(3)
    return kk, qk


def _scan(
    levels: list[Level],
    new: Tensor,
    read: Tensor,
    asks: Tensor,
    inside: Tensor,
    writes: Tensor,
    fades: Tensor,
) -> Tensor:
    """[N, H, C, V]: the states of all runs are advanced chunk by chunk, those of a level together."""
    outputs, first = [], 0
    above = new.new_zeros(0)
    for level in levels:
        shape = (level.widths[0], new.shape[1], writes.shape[-1], new.shape[-1])
        state = new.new_zeros(shape) if level.before is None else above[level.before]
        ended = []
        for width in level.widths:
            if width < len(state):
                ended.append(state[width:])
                state = state[:width]
            here = slice(first, first + width)
            first += width
            value = new[here] - read[here] @ state
            outputs.append(asks[here] @ state + inside[here] @ value)
            state = state * fades[here] + writes[here].mT @ value
        above = torch.cat([state, *reversed(ended)])
    return torch.cat(outputs)


def _chunked(x: Tensor, chunks: Chunks) -> Tensor:
    """x [T, heads, D] → [N, heads, C, D], with zeros where a chunk has no token."""
    rows = functional.pad(x, (0, 0, 0, 0, 0, 1)).index_select(0, chunks.index.flatten())
    return rows.view(-1, chunks.size, *x.shape[1:]).transpose(1, 2)


def _expanded(x: Tensor, groups: int) -> Tensor:
    """[N, K, …] → [N, H, …]: each key head for its value heads."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)


def causal_convolution(x_TD: Tensor, weight_DW: Tensor, taps: Tensor) -> Tensor:
    """[T, D]: each channel's weighted sum of the last W tokens of its sequence, the newest by the last.

    `taps` int64 [W - 1, T] (`Chunks.taps`).
    """
    padded = functional.pad(x_TD, (0, 0, 0, 1))
    out = x_TD * weight_DW[:, -1]
    for distance, places in enumerate(taps, start=2):
        out = torch.addcmul(out, padded.index_select(0, places), weight_DW[:, -distance])
    return out
