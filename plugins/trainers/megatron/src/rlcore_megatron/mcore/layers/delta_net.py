"""The gated delta net of Qwen3-Next, Qwen3.5 and Kimi-Linear: its state does not grow with the sequence.

Rows of a weight are grouped by key head, each with its value heads, so that tensor-parallel ranks divide the
heads. Context-parallel ranks exchange tokens for heads: each has all tokens of its heads while the state
runs through the sequence (https://arxiv.org/abs/2309.14509).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.tensor_parallel.mappings import all_to_all, copy_to_tensor_model_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.attention import recomputable
from rlcore_megatron.mcore.layers.delta_kernels import TORCH, kernels_for
from rlcore_megatron.mcore.layers.latent import Replicated
from rlcore_megatron.mcore.layers.linear import InputLinear, OutputLinear
from rlcore_megatron.mcore.packs.context import Share
from rlcore_megatron.mcore.packs.sequences import Sequences
from rlcore_toolkit import current_device

_NORM_EPS = 1e-6
"""Under the root of the length of a query or a key, whatever the config says of the other norms."""


@dataclass(frozen=True, kw_only=True)
class DeltaSizes:
    """Numbers and sizes of heads. `key_heads` divides `value_heads`. The convolution sees `taps` tokens.

    `gate_rank`: each channel of a key fades for itself (Kimi Delta Attention, arXiv:2510.26692); these rates
    and the gates of the values come from as many numbers a token. None: a head has one rate.
    """

    key_heads: int
    value_heads: int
    key: int
    value: int
    taps: int
    gate_rank: int | None = None

    @property
    def group(self) -> int:
        """Value heads of a key head."""
        return self.value_heads // self.key_heads

    @property
    def mixed(self) -> int:
        """Channels of a key head that the convolution reads: its query and key, the values of its group."""
        return 2 * self.key + self.group * self.value

    @property
    def projected(self) -> int:
        """Rows of the input's projection, of a key head: `mixed`, and gates of the values of full rank."""
        return self.mixed + (0 if self.gate_rank else self.group * self.value)

    @property
    def rates(self) -> int:
        """How many rates a key head forgets by."""
        return self.group * (self.key if self.gate_rank else 1)


class DeltaNet(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """Stands where a layer has its self-attention. Tensor-parallel ranks divide the key heads."""

    def __init__(self, config: TransformerConfig, layer_number: int, *, sizes: DeltaSizes, **_: Any) -> None:
        super().__init__(config=config)
        self.sizes = sizes
        self.key_heads = sizes.key_heads // parallel.tensor_size()
        into: dict[str, Any] = {
            "config": config,
            "init_method": config.init_method,
            "bias": False,
            "gather_output": False,
        }
        self.in_proj_qkvz = InputLinear(config.hidden_size, sizes.key_heads * sizes.projected, **into)
        rates = sizes.value_heads if sizes.gate_rank else 2 * sizes.value_heads
        self.in_proj_ba = InputLinear(config.hidden_size, rates, **into)
        if rank := sizes.gate_rank:
            self.gates_down = Replicated(config.hidden_size, 2 * rank, config)
            self.rates_up = InputLinear(rank, sizes.key_heads * sizes.rates, **into)
            self.gates_up = InputLinear(rank, sizes.value_heads * sizes.value, **into)
        self.state = StateParameters(config, sizes)
        heads, of_head = (self.key_heads, self.key_heads * sizes.group), (sizes.key, sizes.value)
        is_torch = sizes.gate_rank or self.state.A_log.is_meta  # a model that only names its weights
        self.kernels = TORCH if is_torch else kernels_for(heads, of_head, config.params_dtype)
        self.out_norm = OutputNorm(config, sizes.value, is_exact=sizes.gate_rank is not None)
        self.out_proj = OutputLinear(
            sizes.value_heads * sizes.value,
            config.hidden_size,
            config=config,
            init_method=config.output_layer_init_method,
            bias=False,
            input_is_parallel=True,
            skip_bias_add=True,
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        packed_seq_params: PackedSeqParams,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [T, 1, H], or its part of a sequence-parallel rank → (the same shape, no bias)."""
        sizes = self.sizes
        projected = self.in_proj_qkvz(hidden_states)[0].view(-1, self.key_heads, sizes.projected)
        mixed, gate = projected.split([sizes.mixed, sizes.projected - sizes.mixed], dim=-1)
        rates = self.in_proj_ba(hidden_states)[0].view(len(projected), self.key_heads, -1)
        if sizes.gate_rank:
            to_rates, to_gates = self.gates_down(hidden_states).chunk(2, dim=-1)
            rates = torch.cat((rates, self.rates_up(to_rates)[0].view(-1, self.key_heads, sizes.rates)), -1)
            gate = self.gates_up(to_gates)[0].view(-1, self.key_heads, sizes.group * sizes.value)
        pack = Sequences.of(packed_seq_params, len(projected))

        values = recomputable(self, lambda mixed, rates: self._run(mixed, rates, pack), mixed, rates)
        gated = self.out_norm(values.unflatten(-1, (sizes.group, -1)), gate.unflatten(-1, (sizes.group, -1)))
        return self.out_proj(gated.flatten(1)[:, None])[0], None

    def _run(self, mixed: Tensor, rates: Tensor, pack: Sequences) -> Tensor:
        """Convolution and recurrence: [T, key heads, `mixed`], [T, key heads, group + `rates`] → values.

        Under context parallelism T are this rank's tokens, of all its key heads, before and after.
        """
        if pack.share is None:
            return self._recur(mixed, rates, pack, slice(None))
        heads = self.key_heads // pack.share.ranks
        mine = slice(pack.share.rank * heads, (pack.share.rank + 1) * heads)
        both = tokens_for_heads(torch.cat((mixed, rates), dim=-1), pack.share)
        mixed, rates = both.split([mixed.shape[-1], rates.shape[-1]], dim=-1)
        return heads_for_tokens(self._recur(mixed, rates, pack, mine), pack.share)

    def _recur(self, mixed: Tensor, rates: Tensor, pack: Sequences, heads: slice) -> Tensor:
        """The whole pack, of the key heads `heads` of this rank."""
        sizes, state = self.sizes, self.state
        weight = state.conv_weight.unflatten(0, (self.key_heads, -1))[heads].flatten(0, 1)
        mixed = self.kernels.convolve(mixed.flatten(1), weight, pack.chunks).view_as(mixed)
        query, key, value = mixed.split([sizes.key, sizes.key, sizes.group * sizes.value], dim=-1)
        beta, alpha = rates.split([sizes.group, sizes.rates], dim=-1)
        log_rate, bias = (
            x.unflatten(0, (self.key_heads, -1))[heads].flatten() for x in (state.A_log, state.dt_bias)
        )
        rate_THF = functional.softplus(alpha.flatten(1).float() + bias).unflatten(1, (len(log_rate), -1))
        out = self.kernels.recur(
            _unit(query) * sizes.key**-0.5,
            _unit(key),
            value.unflatten(-1, (sizes.group, -1)).flatten(1, 2),
            -log_rate.float().exp()[:, None] * rate_THF,
            beta.flatten(1).sigmoid(),
            pack.chunks,
        )
        return out.to(mixed.dtype).view(len(mixed), -1, sizes.group * sizes.value)


class StateParameters(torch.nn.Module):
    """What a rank's heads have of their own: the convolution's weight, and the rates of forgetting."""

    axes: ClassVar[Mapping[str, int]] = {"conv_weight": 0, "A_log": 0, "dt_bias": 0}

    def __init__(self, config: TransformerConfig, sizes: DeltaSizes) -> None:
        super().__init__()
        heads = sizes.key_heads // parallel.tensor_size()
        place: dict[str, Any] = {"dtype": config.params_dtype, "device": current_device()}
        self.conv_weight = torch.nn.Parameter(torch.empty(heads * sizes.mixed, sizes.taps, **place))
        # transformers' first values: a rate up to 16, and a bias of 1
        self.A_log = torch.nn.Parameter(torch.empty(heads * sizes.group, **place).uniform_(0.01, 16).log_())
        self.dt_bias = torch.nn.Parameter(torch.ones(heads * sizes.rates, **place))
        if config.perform_initialization:
            config.init_method(self.conv_weight)
        for parameter in self.parameters():
            set_tensor_model_parallel_attributes(parameter, is_parallel=True, dim=0, stride=1)

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: Sequence[Any] = (), metadata: Any = None
    ) -> Any:
        """What a checkpoint of megatron asks for: where this rank's part is in the whole."""
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, dict(self.axes), sharded_offsets)


class OutputNorm(torch.nn.Module):
    """RMSNorm of each value head, times a function of its gate; one weight for all heads, not zero-centered.

    In transformers' order: `is_exact`, all in fp32, with a sigmoid (Kimi); else cast before the weight, with
    SiLU (Qwen).
    """

    def __init__(self, config: TransformerConfig, size: int, *, is_exact: bool) -> None:
        super().__init__()
        self.eps, self.is_exact = config.layernorm_epsilon, is_exact
        self.weight = torch.nn.Parameter(torch.ones(size, dtype=config.params_dtype, device=current_device()))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate [..., V] → [..., V]."""
        # each tensor-parallel rank sees its heads alone: backward sums over the ranks
        weight: Tensor = copy_to_tensor_model_parallel_region(self.weight)
        normed = functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps)
        if self.is_exact:
            return (weight * normed * gate.float().sigmoid()).to(x.dtype)
        return (weight * normed.to(x.dtype) * functional.silu(gate.float())).to(x.dtype)


def tokens_for_heads(x: Tensor, share: Share) -> Tensor:
    """x [T / ranks, heads, D] of each context-parallel rank → [T, heads / ranks, D], in the pack's order."""
    parts = x.unflatten(1, (share.ranks, -1)).transpose(0, 1)  # [ranks, T / ranks, heads / ranks, D]
    received = _exchanged(parts)
    return share.in_order(received.flatten(0, 1))


def heads_for_tokens(x: Tensor, share: Share) -> Tensor:
    """The way back: x [T, heads / ranks, D] → [T / ranks, heads, D]."""
    received = _exchanged(share.in_parts(x).unflatten(0, (share.ranks, -1)))
    return received.transpose(0, 1).flatten(1, 2)


def _exchanged(parts: Tensor) -> Tensor:
    """parts [ranks, …]: what each rank gets → what each rank sent."""
    received: Tensor = all_to_all(parallel.context_group(), parts.contiguous().flatten(0, 1))
    return received.view_as(parts)


def _unit(x: Tensor) -> Tensor:
    """Float32, of length 1 along the last dimension."""
    wide = x.float()
    unit: Tensor = wide * (wide.square().sum(-1, keepdim=True) + _NORM_EPS).rsqrt()
    return unit
