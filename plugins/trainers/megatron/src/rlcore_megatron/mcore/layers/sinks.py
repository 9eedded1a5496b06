"""Learned sinks: a logit for each head that takes part in its softmax and has no value (gpt-oss).

    m_i = log(exp(sink) + Σ_j exp(s_ij))      P_ij = exp(s_ij - m_i)      out_i = Σ_j P_ij v_j

A kernel without sinks gives out and lse_i = log Σ_j exp(s_ij), so the output here is out · exp(lse - m).

Its own backward computes dS_ij = P_ij (dout_i · v_j - dout_i · out_i), with P from the lse that it is given.
Given this output and m, it computes the gradient with sinks. The gradient of a sink is
-Σ_i exp(sink - m_i) (dout_i · out_i).
"""

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor

_aten: Any = torch.ops.aten


class Kernel(Protocol):
    """An attention without sinks; heads are the second axis of queries, and lse has their shape but the last.

    Keys and values may have fewer heads.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the fp32 lse of each of its rows."""

    def backward(
        self, slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v where that of the output is `slope`."""


def with_sinks(kernel: Kernel, sinks: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The output of `kernel` with `sinks` [heads]."""
    return cast(Tensor, _WithSinks.apply(kernel, sinks, q, k, v))  # type: ignore[no-untyped-call] # of torch


class _WithSinks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, sinks: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = kernel.forward(q, k, v)
        total = torch.logaddexp(lse, _by_head(sinks, lse))
        out = (out * (lse - total).exp()[..., None]).to(q.dtype)
        ctx.kernel = kernel
        ctx.save_for_backward(sinks, q, k, v, out, total)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor]:
        sinks, q, k, v, out, total = ctx.saved_tensors
        part = (_by_head(sinks, total) - total).exp() * (slope * out).to(total.dtype).sum(-1)
        of_sinks = -part.sum([axis for axis in range(part.ndim) if axis != 1])
        return None, of_sinks.to(sinks.dtype), *ctx.kernel.backward(slope.contiguous(), q, k, v, out, total)


def _by_head(sinks: Tensor, lse: Tensor) -> Tensor:
    """`sinks` [heads] in the shape in which they meet `lse`, whose second axis is the heads."""
    return sinks.to(lse.dtype).view(-1, *[1] * (lse.ndim - 2))


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Over q [B, heads, T, D], k and v [B, groups, S, D], with the matrix of all scores.

    `mask` [T, S]: 0 where a key is seen, else -inf; None: query i sees the keys 0 to i.
    """

    scale: float
    mask: Tensor | None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = _expanded(k, q), _expanded(v, q)
        scores = self._scores(q, k)
        return scores.softmax(-1).to(v.dtype) @ v, scores.logsumexp(-1)

    def backward(
        self, slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide_k, wide_v = _expanded(k, q), _expanded(v, q)
        chances = (self._scores(q, wide_k) - lse[..., None]).exp().to(q.dtype)
        mean = (slope * out).sum(-1, keepdim=True)
        of_scores = chances * (slope @ wide_v.mT - mean) * self.scale
        of_k, of_v = of_scores.mT @ q, chances.mT @ slope
        return of_scores @ wide_k, _summed(of_k, k), _summed(of_v, v)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """fp32 [B, heads, T, S]."""
        mask = self.mask
        if mask is None:
            mask = torch.full((q.shape[2], k.shape[2]), -torch.inf, device=q.device).triu(1)
        return (q @ k.mT).float() * self.scale + mask


class CpuFlash(Plain):
    """The same without that matrix: torch's kernel for the CPU."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found = _aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, self.mask is None, attn_mask=self.mask, scale=self.scale
        )
        return cast(tuple[Tensor, Tensor], found)

    def backward(
        self, slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            slope, q, k, v, out, lse, 0.0, self.mask is None, attn_mask=self.mask, scale=self.scale
        )
        return cast(tuple[Tensor, Tensor, Tensor], found)


def _expanded(x: Tensor, q: Tensor) -> Tensor:
    """[B, groups, S, D] → [B, heads, S, D]."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _summed(x: Tensor, like: Tensor) -> Tensor:
    """[B, heads, S, D] → [B, groups, S, D], the shape of `like`."""
    return x.reshape(len(x), like.shape[1], -1, *x.shape[2:]).sum(2)


@dataclass(frozen=True, kw_only=True)
class Varlen:
    """torch's flash attention over packed sequences: q [T, heads, D], k and v [S, groups, D], on a GPU.

    `ends_q`, `ends_k` int32 [N + 1]: where each sequence begins. `before`: how many keys before its own a
    query sees; -1: all.
    """

    scale: float
    ends_q: Tensor
    ends_k: Tensor
    longest: int
    before: int

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, *_ = _aten._flash_attention_forward(
            *(q, k, v, self.ends_q, self.ends_k, self.longest, self.longest, 0.0, self.before < 0, False),
            scale=self.scale,
            window_size_left=self.before,
            window_size_right=0,
        )
        return out, lse.T

    def backward(
        self, slope: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of a dropout that there is not
        found = _aten._flash_attention_backward(
            *(slope, q, k, v, out, lse.T.contiguous(), self.ends_q, self.ends_k, self.longest, self.longest),
            *(0.0, self.before < 0, state, torch.empty(0, device=q.device)),
            scale=self.scale,
            window_size_left=self.before,
            window_size_right=0,
        )
        return cast(tuple[Tensor, Tensor, Tensor], found)
