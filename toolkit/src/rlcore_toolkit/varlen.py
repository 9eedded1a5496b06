"""Attention over a pack of sequences of any lengths, by torch's flash attention on a GPU."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

_MOST_WIDTH = 192
"""Of a head in flash attention, which takes multiples of 8. Wider ones have no gradient on some GPUs."""


def fits_varlen(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `varlen_attention` takes these: in half precision on a GPU, with heads of one size."""
    width = q.shape[-1]
    is_fit = width % 8 == 0 and width <= _MOST_WIDTH and width == k.shape[-1] == v.shape[-1]
    if not (is_fit and q.is_cuda and q.dtype in (torch.bfloat16, torch.float16)):
        return False
    return torch.cuda.get_device_capability(q.device) >= (8, 0)


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest: int,
    *,
    scale: float,
    before: int = -1,
) -> Tensor:
    """q [T, heads, D], k and v [S, groups, D] → [T, heads, D].

    `ends_q`, `ends_k` int32 [N + 1]: where the queries and the keys of each sequence begin, and the end of
    the last. `longest`: the most keys of one. A query sees `before` keys before its own (-1: all), and none
    after it; where queries and keys differ in number, the last ones are aligned.
    """
    from torch.nn.attention.varlen import varlen_attn

    settings: dict[str, Any] = {"scale": scale, "window_size": (before, 0)}
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            settings["enable_gqa"] = True
        else:  # torch 2.11 may come without it
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    out = varlen_attn(q, k, v, ends_q, ends_k, longest, longest, **settings)
    assert isinstance(out, Tensor)  # a pair is returned only where `return_aux` asks for it
    return out
