"""RMSNorms in plain torch, with a CPU's own kernel where it fits."""

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_toolkit import current_device, fits_kernel, kernel_rms_norm


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centered: bool = False) -> Tensor:
    """x [..., H] over its last dimension, in the order of Hugging Face: normalize in fp32, cast, scale.

    `zero_centered`: the scale is 1 + `weight`, applied in fp32 before the cast (Gemma, Qwen3-Next).
    """
    if zero_centered:
        weight = 1.0 + weight.float()
        if x.dtype != torch.float32:
            return functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)
    if fits_kernel(x):
        return kernel_rms_norm(x, weight, eps)
    if x.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return weight * functional.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype)


def norm_weight(size: int, config: TransformerConfig) -> torch.nn.Parameter:
    """A scale of ones [size]. The mark makes `finalize_model_grads` sum its gradient over sequence-parallel
    ranks.
    """
    first = 0.0 if config.layernorm_zero_centered_gamma else 1.0
    weight = torch.nn.Parameter(
        torch.full((size,), first, dtype=config.params_dtype, device=current_device())
    )
    weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined] # megatron's mark
    return weight


class Norm(torch.nn.Module):
    """An RMSNorm of its own: the final one, and those of query and key."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.zero_centered = config.layernorm_zero_centered_gamma
        self.weight = norm_weight(hidden_size, config)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, zero_centered=self.zero_centered)


class JointNorm(torch.nn.Module):
    """One RMSNorm over all `heads` of a token's queries or keys, of `hidden_size` each.

    A tensor-parallel rank has its heads' part of the weight; the mean square is of the heads of all ranks.
    """

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, *, heads: int, **_: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.size = heads * hidden_size
        part = torch.ones(
            self.size // parallel.tensor_size(), dtype=config.params_dtype, device=current_device()
        )
        self.weight = torch.nn.Parameter(part)
        set_tensor_model_parallel_attributes(self.weight, is_parallel=True, dim=0, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., heads of this rank, head size] → the same."""
        if parallel.tensor_size() == 1:
            return rms_norm(x.flatten(-2), self.weight, self.eps).view_as(x)
        part = x.flatten(-2).float()
        # The sum is of all ranks, and so is its gradient.
        squares = reduce_from_tensor_model_parallel_region(part.square().sum(-1, keepdim=True))
        scale = (copy_to_tensor_model_parallel_region(squares) / self.size + self.eps).rsqrt()
        normed: Tensor = (part * scale).to(x.dtype)
        return (self.weight * normed).view_as(x)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> Any:
        """What a checkpoint of megatron asks for: where this rank's part is in the whole."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0}, sharded_offsets)
