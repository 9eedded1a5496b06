"""The layers of a decoder in plain torch: what TransformerEngine's spec would give, without it."""

from dataclasses import dataclass
from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)

from rlcore_megatron.mcore.attention import CoreAttention
from rlcore_megatron.mcore.experts import Experts
from rlcore_megatron.mcore.latent import Latent, LatentAttention
from rlcore_megatron.mcore.linear import GatedMLP, NormLinear, OutputLinear
from rlcore_megatron.mcore.norms import Norm
from rlcore_megatron.mcore.replay import SparseLayer
from rlcore_megatron.mcore.rotary import Rotary
from rlcore_megatron.mcore.router import Router
from rlcore_megatron.mcore.routing import Routing


@dataclass(frozen=True, kw_only=True)
class Linears:
    """The classes of a layer's linear modules; `rlcore_megatron.mcore.linear` has those of other families.

    `qk_norm`: the norm of queries and of keys, where it is not the one over each head that
    `config.qk_layernorm` asks for. Leave that off then: it has megatron sum the gradient over tensor ranks.
    """

    qkv: type = NormLinear
    projection: type = OutputLinear
    up: type = NormLinear
    down: type = OutputLinear
    qk_norm: type | None = None


def layer_spec(
    config: TransformerConfig,
    rotary: Rotary,
    linears: Linears | None = None,
    *,
    latent: Latent | None = None,
    routing: Routing | None = None,
) -> ModuleSpec:
    """One pre-norm decoder layer; a norm that feeds one linear layer is fused in front of it.

    `latent`: sizes of a latent attention. `routing`: of experts in the place of the dense MLP.
    """
    linears = linears or Linears()
    is_latent, has_experts = latent is not None, routing is not None
    return ModuleSpec(
        module=SparseLayer if has_experts else TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=Norm if is_latent else IdentityOp,
            self_attention=_latent_attention(rotary, latent)
            if latent
            else _attention(config, rotary, linears),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=Norm if has_experts else IdentityOp,
            mlp=_experts(routing) if routing else _mlp(linears),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _attention(config: TransformerConfig, rotary: Rotary, linears: Linears) -> ModuleSpec:
    norm = linears.qk_norm or (Norm if config.qk_layernorm else IdentityOp)
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=linears.qkv,
            core_attention=ModuleSpec(module=CoreAttention, params={"rotary": rotary}),
            linear_proj=linears.projection,
            q_layernorm=ModuleSpec(module=norm, params={"heads": config.num_attention_heads}),
            k_layernorm=ModuleSpec(module=norm, params={"heads": config.num_query_groups}),
        ),
    )


def _latent_attention(rotary: Rotary, latent: Latent) -> ModuleSpec:
    # the mask is read by megatron's layer for multi-token prediction, which checks it
    params = {"rotary": rotary, "latent": latent, "attn_mask_type": AttnMaskType.causal}
    return ModuleSpec(module=LatentAttention, params=params)


def _mlp(linears: Linears) -> ModuleSpec:
    return ModuleSpec(
        module=GatedMLP, submodules=MLPSubmodules(linear_fc1=linears.up, linear_fc2=linears.down)
    )


def _experts(routing: Routing) -> ModuleSpec:
    shared = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=OutputLinear)
    return ModuleSpec(
        module=MoELayer,
        submodules=MoESubmodules(
            experts=Experts,
            shared_experts=ModuleSpec(module=SharedExpertMLP, submodules=shared),
            router=partial(Router, routing=routing),
        ),
    )


def block_spec(
    config: TransformerConfig,
    rotary: Rotary,
    linears: Linears | None = None,
    vp_stage: int | None = None,
    *,
    latent: Latent | None = None,
    routing: Routing | None = None,
) -> TransformerBlockSubmodules:
    """The layers that this pipeline stage builds, and the final norm, which the last stage applies.

    With `routing`, `config.moe_layer_freq` says of each layer of the model whether it has experts.
    """
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    sparse = [False] * count if routing is None else config.moe_layer_freq[first : first + count]
    layers = [
        layer_spec(config, rotary, linears, latent=latent, routing=routing if has_experts else None)
        for has_experts in sparse
    ]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)
