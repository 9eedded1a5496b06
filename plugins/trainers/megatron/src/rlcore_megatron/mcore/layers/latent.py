"""Multi-head latent attention: keys and values from one compressed vector a token (DeepSeek-V2, V3).

Megatron's own applies its rotary positions sequence by sequence and knows no packs with shared prompts.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional

from rlcore_megatron.mcore import parallel
from rlcore_megatron.mcore.layers.adapter import Adapter, Place
from rlcore_megatron.mcore.layers.attention import causal, recomputable
from rlcore_megatron.mcore.layers.linear import InputLinear, NormLinear, OutputLinear
from rlcore_megatron.mcore.layers.rotary import Rotary, rotate
from rlcore_megatron.mcore.packs.sequences import Sequences
from rlcore_toolkit import current_device


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Sizes of the compressed vectors and of a head. `query_rank` None: queries are not compressed.

    `plain`, `turned`: dimensions of a query or key without and with rotary positions, which some models leave
    out. `scale` multiplies the products of queries and keys.
    """

    query_rank: int | None
    rank: int
    plain: int
    turned: int
    value: int
    scale: float
    norm_eps: float


class LatentAttention(MegatronModule):  # type: ignore[misc] # megatron-core is untyped
    """Stands where a layer has its self-attention. Heads are divided between the tensor-parallel ranks."""

    def __init__(
        self, config: TransformerConfig, layer_number: int, *, latent: Latent, rotary: Rotary | None, **_: Any
    ) -> None:
        super().__init__(config=config)
        self.latent, self.rotary = latent, rotary
        self.heads = config.num_attention_heads // parallel.tensor_size()
        heads, hidden = config.num_attention_heads, config.hidden_size
        queries = heads * (latent.plain + latent.turned)
        of_linear = {"config": config, "init_method": config.init_method}
        of_linear |= {"bias": False, "gather_output": False}
        if latent.query_rank is None:
            self.linear_q_proj = InputLinear(hidden, queries, **of_linear)
        else:
            self.linear_q_down_proj = Replicated(hidden, latent.query_rank, config)
            self.linear_q_up_proj = NormLinear(latent.query_rank, queries, eps=latent.norm_eps, **of_linear)
        self.linear_kv_down_proj = Replicated(hidden, latent.rank + latent.turned, config)
        self.linear_kv_up_proj = NormLinear(
            latent.rank, heads * (latent.plain + latent.value), eps=latent.norm_eps, **of_linear
        )
        self.linear_proj = OutputLinear(
            heads * latent.value,
            hidden,
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
        query, key, value, pack = self._heads(
            hidden_states, self._compressed(hidden_states), packed_seq_params
        )
        out = self._attend(query, key, value, pack)
        return self.linear_proj(out.flatten(-2)[:, None])[0], None

    def _heads(
        self, hidden: Tensor, compressed_query: Tensor, params: PackedSeqParams
    ) -> tuple[Tensor, Tensor, Tensor, Sequences]:
        """Queries, keys [T, heads, plain + turned] and values [T, heads, value] of this rank; their pack."""
        # With c = W_down h, and `shared` the part of c that all heads have in common:
        #   q = [q_plain; R q_turned]     [k_plain; v] = W_up norm(c)     k = [k_plain; R shared]
        # R turns by the token's place. Keys and values are expanded: training keeps no cache of c.
        latent = self.latent
        to_queries = self.linear_q_proj if latent.query_rank is None else self.linear_q_up_proj
        query = to_queries(compressed_query)[0].view(-1, self.heads, latent.plain + latent.turned)
        compressed, shared = self.linear_kv_down_proj(hidden).split([latent.rank, latent.turned], dim=-1)
        expanded = self.linear_kv_up_proj(compressed)[0]
        key, value = expanded.view(-1, self.heads, latent.plain + latent.value).split(
            [latent.plain, latent.value], dim=-1
        )
        pack = Sequences.of(params, query.shape[0])
        query_plain, query_turned = query.split([latent.plain, latent.turned], dim=-1)
        query = torch.cat((query_plain, self._rotate(query_turned, pack)), dim=-1)
        turned = self._rotate(self._whole(shared), pack).expand(-1, self.heads, -1)
        return query, torch.cat((key, turned), dim=-1), value, pack

    def _rotate(self, x: Tensor, pack: Sequences) -> Tensor:
        rotary = self.rotary
        return x if rotary is None else rotate(x, *rotary.table_of(pack, x.dtype), rotary.interleaved)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, pack: Sequences) -> Tensor:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return causal(query, key, value, pack, self.latent.scale)

        return recomputable(self, attend, query, key, value)

    def _compressed(self, hidden: Tensor) -> Tensor:
        """What queries are made of."""
        return hidden if self.latent.query_rank is None else cast(Tensor, self.linear_q_down_proj(hidden))

    def _whole(self, shared: Tensor) -> Tensor:
        """What all heads share of the key, [T, 1, turned]; backward sums over the ranks of the heads."""
        is_cut = self.config.sequence_parallel
        spread = gather_from_sequence_parallel_region if is_cut else copy_to_tensor_model_parallel_region
        return cast(Tensor, spread(shared))


class Replicated(MegatronModule):  # type: ignore[misc] # as above
    """A linear layer that each tensor-parallel rank has whole."""

    place = Place.WHOLE

    def __init__(self, inputs: int, outputs: int, config: TransformerConfig) -> None:
        super().__init__(config=config)
        self.adapter: Adapter | None = None
        weight = torch.empty(outputs, inputs, dtype=config.params_dtype, device=current_device())
        self.weight = torch.nn.Parameter(weight)
        if config.perform_initialization:
            config.init_method(self.weight)
        # each rank sees its part of the sequence: the mark makes `finalize_model_grads` sum the gradients
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[…, inputs] → […, outputs]."""
        output = functional.linear(x, self.weight)
        return output if self.adapter is None else self.adapter.added(output, x)
