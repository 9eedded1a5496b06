"""The linear layers and the MLP of a decoder in plain torch, with a CPU's own kernels where they fit."""

from typing import Any

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn import functional

from rlcore_megatron.mcore.layers.adapter import Adapter, Place
from rlcore_megatron.mcore.layers.norms import norm_weight, rms_norm
from rlcore_toolkit import fits_kernel, kernel_linear, kernel_swiglu


class _Linear(nn.Module):
    """What megatron's linear layers get here: an adapter, and the CPU's kernel."""

    config: TransformerConfig

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.adapter: Adapter | None = None

    def forward(self, x: Tensor, *args: Any, **settings: Any) -> Any:
        """Megatron's (output, bias) pair."""
        output, bias = super().forward(x, *args, **settings)
        return (output if self.adapter is None else self.adapter.added(output, x)), bias

    def _forward_impl(self, input: Tensor, weight: Tensor, **settings: Any) -> Any:
        # None on a GPU, for another dtype, and under sequence parallelism
        out = _on_cpu(input, weight, **settings)
        if out is None:
            out = super()._forward_impl(input, weight, **settings)  # type: ignore[misc] # of megatron's layer
        return out


class InputLinear(_Linear, ColumnParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """A column-parallel linear layer at the beginning of attention and MLP."""

    place = Place.COLUMN


class NormLinear(InputLinear):
    """RMSNorm of the input, then a column-parallel linear layer.

    Parameter names are those of a TransformerEngine run (`linear_qkv.layer_norm_weight`), so name maps and
    checkpoints written for one apply to the other.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: TransformerConfig,
        eps: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(input_size, output_size, config=config, **settings)
        self.eps = config.layernorm_epsilon if eps is None else eps
        self.layer_norm_weight = norm_weight(input_size, config)

    def forward(self, x: Tensor, *args: Any, **settings: Any) -> Any:
        """Megatron's (output, bias) pair."""
        zero_centered = self.config.layernorm_zero_centered_gamma
        normed = rms_norm(x, self.layer_norm_weight, self.eps, zero_centered=zero_centered)
        return super().forward(normed, *args, **settings)


class OutputLinear(_Linear, RowParallelLinear):  # type: ignore[misc] # megatron-core is untyped
    """The row-parallel linear layer at the end of attention and MLP."""

    place = Place.ROW


class BiasedNormLinear(NormLinear):
    """With a bias, whatever the config says of all linear layers together."""

    def __init__(self, *sizes: int, bias: bool, **settings: Any) -> None:
        super().__init__(*sizes, bias=True, **settings)


class BiasedLinear(OutputLinear):
    """Row-parallel with a bias, whatever the config says of all linear layers together."""

    def __init__(self, *sizes: int, bias: bool, **settings: Any) -> None:
        super().__init__(*sizes, bias=True, **settings)


class LinearNorm(OutputLinear):
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
        zero_centered = self.config.layernorm_zero_centered_gamma
        return rms_norm(output, self.post_layer_norm_weight, self.eps, zero_centered=zero_centered), None


def _on_cpu(
    input: Tensor,
    weight: Tensor,
    *,
    bias: Tensor | None,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: ProcessGroup,
    **_: Any,
) -> Tensor | None:
    """What megatron's function of these arguments returns; None where the CPU's kernel does not fit."""
    if sequence_parallel or not fits_kernel(input):
        return None
    # each rank has some rows of the matrix: the input's gradient is the sum of what all of them give
    out = kernel_linear(input, weight, tp_group if allreduce_dgrad else None)
    return out if bias is None else out + bias


class GatedMLP(MLP):  # type: ignore[misc] # megatron-core is untyped
    """Megatron's MLP; SwiGLU takes the CPU's kernel where it fits."""

    def __init__(self, config: TransformerConfig, *args: Any, **settings: Any) -> None:
        super().__init__(config, *args, **settings)
        # the kernel knows silu(gate) · up alone: no clamp, no offset, no other activation
        self._is_swiglu = (
            config.gated_linear_unit
            and config.activation_func is functional.silu
            and config.activation_func_clamp_value is None
            and config.glu_linear_offset == 0.0
        )

    def forward(self, hidden_states: Tensor, per_token_scale: Tensor | None = None, **settings: Any) -> Any:
        """Megatron's (output, bias) pair."""
        if not self._is_swiglu or per_token_scale is not None or not fits_kernel(hidden_states):
            return super().forward(hidden_states, per_token_scale=per_token_scale, **settings)
        gate_up, bias = self.linear_fc1(hidden_states)
        gate_up = gate_up if bias is None else gate_up + bias
        return self.linear_fc2(kernel_swiglu(gate_up, made_by=[self.linear_fc1]))
