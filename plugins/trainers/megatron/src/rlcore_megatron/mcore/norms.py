"""RMS norms."""

from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore.imports import device
from rlcore_toolkit import fits_kernel, kernel_rms_norm


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] over its last dimension, in the order of Hugging Face: normalize in fp32, cast, scale."""
    if fits_kernel(x):
        return kernel_rms_norm(x, weight, eps)
    if x.dtype == torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return weight * functional.rms_norm(x.float(), (x.shape[-1],), None, eps).to(x.dtype)


def norm_weight(size: int, config: TransformerConfig) -> torch.nn.Parameter:
    """Ones [size]. The mark makes `finalize_model_grads` sum its gradient over sequence-parallel ranks."""
    weight = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=device()))
    weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined] # megatron's mark
    return weight


class Norm(torch.nn.Module):
    """An RMSNorm of its own: the final one, and those of query and key."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = norm_weight(hidden_size, config)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
