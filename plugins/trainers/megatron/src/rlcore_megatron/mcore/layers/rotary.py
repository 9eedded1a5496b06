"""Rotary positions, from the frequencies that transformers computes for each kind of scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rlcore_megatron.mcore.packs.sequences import Sequences


@dataclass(frozen=True, eq=False)
class Rotary:
    """`frequencies` float32 [D/2] of the D rotated dimensions; `scale` multiplies cosine and sine (yarn).

    `interleaved`: dimensions 2i and 2i + 1 are a pair, else i and i + D/2. `growth`: a factor and a length by
    which queries grow with their position, as `query_scales` says.
    """

    frequencies: Tensor
    scale: float = 1.0
    interleaved: bool = False
    growth: tuple[float, int] | None = None

    @classmethod
    def of(cls, hf_config: PretrainedConfig, device: torch.device, *, interleaved: bool = False) -> Rotary:
        """The frequencies of its `rope_type`: "default" or a key of transformers' ROPE_INIT_FUNCTIONS."""
        rope = hf_config.rope_parameters
        if (kind := rope["rope_type"]) == "default":
            heads = hf_config.num_attention_heads
            size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads
            size = int(size * rope.get("partial_rotary_factor", 1.0))
            steps = torch.arange(0, size, 2, dtype=torch.int64).float() / size
            return cls((1.0 / rope["rope_theta"] ** steps).to(device), interleaved=interleaved)
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](hf_config, device)
        return cls(frequencies.float(), float(scale), interleaved)

    def table_of(self, sequences: Sequences, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The table of each token's place in its sequence, made once a forward for all layers."""
        key = (self, dtype)
        if key not in sequences.tables:
            sequences.tables[key] = self.table(sequences.positions, dtype)
        return sequences.tables[key]

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine [T, 1, D] (a dimension) and sine [T, 1, D/2] (a pair) of int64 `positions` [T]."""
        angles = positions.float()[:, None, None] * self.frequencies
        cosine, sine = (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)
        whole = cosine.repeat_interleave(2, -1) if self.interleaved else torch.cat((cosine, cosine), dim=-1)
        return whole, sine

    def query_scales(self, positions: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What multiplies the queries at int64 `positions` [T]: [T, 1, 1], None where queries do not grow.

        s(p) = 1 + factor · log(1 + ⌊p / length⌋), as Llama 4 and Ministral 3 have it.
        """
        if self.growth is None:
            return None
        factor, length = self.growth
        return (1 + factor * torch.log(1 + torch.floor(positions / length))).to(dtype)[:, None, None]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool = False) -> Tensor:
    """x [T, heads, size], its first D dimensions turned in the pairs that `Rotary` says, by its `table`."""
    return cast(Tensor, _Rotate.apply(x, cosine, sine, interleaved))  # type: ignore[no-untyped-call] # of torch


class _Rotate(torch.autograd.Function):
    """Backward turns the other way: half the memory traffic of what autograd would record."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        ctx.interleaved = interleaved
        return _turn(x, cosine, sine, interleaved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turn(gradient, cosine, -sine, ctx.interleaved), None, None, None


def _turn(x: Tensor, cosine: Tensor, sine: Tensor, interleaved: bool) -> Tensor:
    half = sine.shape[-1]
    step, start = (2, 1) if interleaved else (1, half)
    first, second = slice(0, step * half, step), slice(start, start + step * half, step)
    rest = x[..., 2 * half :]
    out = x[..., : 2 * half] * cosine
    out[..., first].addcmul_(x[..., second], sine, value=-1)
    out[..., second].addcmul_(x[..., first], sine)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
