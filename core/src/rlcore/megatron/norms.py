"""RMS norms, alone and fused with a linear layer, under the names that TransformerEngine gives them.

Parameter names are those of a TransformerEngine run (`linear_qkv.layer_norm_weight`), so name maps and
checkpoints written for one apply to the other.
"""

from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore.megatron.imports import device


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H] over its last dimension, in the order of Hugging Face: normalize in fp32, cast, scale."""
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


class NormLinear(ColumnParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """RMSNorm of the input, then a column-parallel linear layer."""

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, **settings: Any
    ) -> None:
        super().__init__(input_size, output_size, config=config, **settings)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = norm_weight(input_size, config)

    def forward(self, x: Tensor, *args: Any, **settings: Any) -> Any:
        """Megatron's (output, bias) pair."""
        return super().forward(rms_norm(x, self.layer_norm_weight, self.eps), *args, **settings)


class BiasedNormLinear(NormLinear):
    """With a bias, whatever the config says of all linear layers together."""

    def __init__(self, *sizes: int, bias: bool, **settings: Any) -> None:
        super().__init__(*sizes, bias=True, **settings)


class BiasedLinear(RowParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """Row-parallel with a bias, whatever the config says of all linear layers together."""

    def __init__(self, *sizes: int, bias: bool, **settings: Any) -> None:
        super().__init__(*sizes, bias=True, **settings)


class LinearNorm(RowParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """A row-parallel linear layer without a bias, then an RMSNorm of its output (GLM-4's sandwich norms)."""

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, **settings: Any
    ) -> None:
        super().__init__(input_size, output_size, config=config, **settings)
        self.eps = config.layernorm_epsilon
        self.post_layer_norm_weight = norm_weight(output_size, config)

    def forward(self, x: Tensor) -> Any:
        """Megatron's (output, bias) pair."""
        output, bias = super().forward(x)
        assert bias is None
        return rms_norm(output, self.post_layer_norm_weight, self.eps), None
