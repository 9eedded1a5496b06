"""The gated delta rule over packed sequences, in chunks (Gated DeltaNet, arXiv:2412.06464).

Shape suffixes: T tokens of the pack, K key heads, H value heads (a multiple of K), N chunks, C tokens of a
chunk; D the size of a key, V that of a value.
"""

import torch
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.packs.chunks import Chunks, Level


def gated_delta_rule(
    q_TKD: Tensor, k_TKD: Tensor, v_THV: Tensor, decay_TH: Tensor, beta_TH: Tensor, chunks: Chunks
) -> Tensor:
    """float32 [T, H, V]: what the state of each value head gives to each query.

    For each token of a sequence, from a state S = 0 [D, V]: S ← e^decay · S; S ← S + k (beta (v - Sᵀk))ᵀ; the
    output is Sᵀq. `decay_TH` ≤ 0. Value head h reads key head h // (H / K). All in float32.
    """
    q, k, v, decay, beta = (
        _chunked(x.float(), chunks) for x in (q_TKD, k_TKD, v_THV, decay_TH[..., None], beta_TH[..., None])
    )
    key_heads, groups = k.shape[1], v.shape[1] // k.shape[1]
    # Products of queries and keys are those of the key heads; what differs by value head comes after.
    total_NHC = decay[..., 0].cumsum(-1)
    lower = torch.ones(chunks.size, chunks.size, dtype=torch.bool, device=v.device).tril()
    # The exponent is cut before exp: above the diagonal it is positive and may overflow.
    fading = (total_NHC[..., :, None] - total_NHC[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    fading = fading.unflatten(1, (key_heads, groups))
    kk, qk = (k @ k.mT)[:, :, None], (q @ k.mT)[:, :, None]
    beta = beta.unflatten(1, (key_heads, groups))
    # Within a chunk, the corrections of its tokens depend on one another: (1 + A) u = βv, A strictly lower.
    system = (beta * kk * fading).flatten(1, 2)
    inside_NHCC = (qk * fading).flatten(1, 2)
    grown = total_NHC.exp()[..., None]
    k_H = _expanded(k, groups)
    beta = beta.flatten(1, 2)
    right = torch.cat((beta * v, beta * k_H * grown), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new, read = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    asks = _expanded(q, groups) * grown
    writes = k_H * (total_NHC[..., -1:] - total_NHC).exp()[..., None]
    fades = total_NHC[..., -1].exp()[..., None, None]
    out = _scan(chunks.levels, new, read, asks, inside_NHCC, writes, fades)
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat.index_select(0, chunks.inverse)


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
