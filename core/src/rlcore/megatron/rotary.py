"""Rotary positions, from the frequencies that transformers computes for each kind of scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


@dataclass(frozen=True, eq=False)
class Rotary:
    """`frequencies` float32 [D/2] of the D rotated dimensions; `scale` multiplies cosine and sine (yarn)."""

    frequencies: Tensor
    scale: float = 1.0

    @classmethod
    def of(cls, hf_config: PretrainedConfig, kind: str, device: torch.device) -> Rotary:
        """The frequencies of rope type `kind`: "default" or a key of transformers' ROPE_INIT_FUNCTIONS."""
        if kind == "default":
            heads = hf_config.num_attention_heads
            size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // heads
            steps = torch.arange(0, size, 2, dtype=torch.int64).float() / size
            return cls((1.0 / hf_config.rope_parameters["rope_theta"] ** steps).to(device))
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](hf_config, device)
        return cls(frequencies.float(), float(scale))

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine [T, 1, D] (twice the same D/2) and sine [T, 1, D/2] of int64 `positions` [T]."""
        angles = positions.float()[:, None, None] * self.frequencies
        cosine, sine = (angles.cos() * self.scale).to(dtype), (angles.sin() * self.scale).to(dtype)
        return torch.cat((cosine, cosine), dim=-1), sine


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [T, heads, size], its first D dimensions turned in pairs (i, i + D/2), as Hugging Face pairs them."""
    turned: Tensor = _Rotate.apply(x, cosine, sine)  # type: ignore[no-untyped-call] # torch does not type it
    return turned


class _Rotate(torch.autograd.Function):
    """Backward turns the other way: half the memory traffic of what autograd would record."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turn(gradient, cosine, -sine), None, None


def _turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    half = sine.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    out = x[..., : 2 * half] * cosine
    out[..., :half].addcmul_(second, sine, value=-1)
    out[..., half:].addcmul_(first, sine)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
