"""The layers of a decoder in plain torch: what TransformerEngine's spec would give, without it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)

from rlcore_megatron.mcore.layers.attention import CoreAttention
from rlcore_megatron.mcore.layers.delta_net import DeltaNet, DeltaSizes
from rlcore_megatron.mcore.layers.experts import ExpertForm, Experts, SharedExperts
from rlcore_megatron.mcore.layers.indexer import IndexSizes, IndexUse, SparseLatentAttention
from rlcore_megatron.mcore.layers.latent import Latent, LatentAttention
from rlcore_megatron.mcore.layers.linear import GatedMLP, InputLinear, NormLinear, OutputLinear
from rlcore_megatron.mcore.layers.norms import Norm
from rlcore_megatron.mcore.layers.replay import SparseLayer
from rlcore_megatron.mcore.layers.rotary import Rotary
from rlcore_megatron.mcore.layers.router import Router
from rlcore_megatron.mcore.layers.routing import Routing


@dataclass(frozen=True, kw_only=True)
class Linears:
    """The classes of a layer's linear modules; `layers.linear` has those of other families.

    `qk_norm`: the norm of queries and of keys, where it is not the one over each head that
    `config.qk_layernorm` asks for. Leave that off then: it has megatron sum the gradient over tensor ranks.
    """

    qkv: type = NormLinear
    projection: type = OutputLinear
    up: type = NormLinear
    down: type = OutputLinear
    qk_norm: type | None = None


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """What mixes the tokens of a layer: an attention or a delta net.

    `fuses_norm`: it normalizes its input itself; else the layer has a norm in front of it.
    """

    module: ModuleSpec
    fuses_norm: bool = False


def self_attention(
    config: TransformerConfig,
    rotary: Rotary,
    linears: Linears,
    *,
    window: int | None = None,
    sinks: bool = False,
) -> Mixer:
    """Grouped queries, with or without norms of query and key, biases, and a gate of the output.

    `window`: how many tokens a query sees, None: all before it; `sinks`: each head learns one.
    """
    norm = linears.qk_norm or (Norm if config.qk_layernorm else IdentityOp)
    core = {"rotary": rotary, "window": window, "sinks": sinks}
    module = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=linears.qkv,
            core_attention=ModuleSpec(module=CoreAttention, params=core),
            linear_proj=linears.projection,
            q_layernorm=ModuleSpec(module=norm, params={"heads": config.num_attention_heads}),
            k_layernorm=ModuleSpec(module=norm, params={"heads": config.num_query_groups}),
        ),
    )
    return Mixer(module=module, fuses_norm=True)


def latent_attention(rotary: Rotary | None, latent: Latent) -> Mixer:
    """Keys and values from one compressed vector a token."""
    # the mask is read by megatron's layer for multi-token prediction, which checks it
    params = {"rotary": rotary, "latent": latent, "attn_mask_type": AttnMaskType.causal}
    return Mixer(module=ModuleSpec(module=LatentAttention, params=params))


def sparse_latent_attention(
    rotary: Rotary, latent: Latent, index: IndexSizes, index_rotary: Rotary, use: IndexUse
) -> Mixer:
    """The same over the keys that an indexer chose."""
    mixer = latent_attention(rotary, latent)
    params = {**mixer.module.params, "index": index, "index_rotary": index_rotary, "use": use}
    return Mixer(module=ModuleSpec(module=SparseLatentAttention, params=params))


def delta_net(sizes: DeltaSizes) -> Mixer:
    """A gated delta net."""
    return Mixer(module=ModuleSpec(module=DeltaNet, params={"sizes": sizes}))


@dataclass(frozen=True)
class Mixture:
    """Experts in the place of a dense MLP: how tokens choose them, and what each computes."""

    routing: Routing
    form: ExpertForm


def layer_spec(mixer: Mixer, linears: Linears, mixture: Mixture | None) -> ModuleSpec:
    """One pre-norm decoder layer; a norm that feeds one linear layer is fused in front of it."""
    return ModuleSpec(
        module=SparseLayer if mixture else TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=IdentityOp if mixer.fuses_norm else Norm,
            self_attention=mixer.module,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=Norm if mixture else IdentityOp,
            mlp=_experts(mixture) if mixture else _mlp(linears),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def _mlp(linears: Linears) -> ModuleSpec:
    return ModuleSpec(
        module=GatedMLP, submodules=MLPSubmodules(linear_fc1=linears.up, linear_fc2=linears.down)
    )


def _experts(mixture: Mixture) -> ModuleSpec:
    shared = MLPSubmodules(linear_fc1=InputLinear, linear_fc2=OutputLinear)
    return ModuleSpec(
        module=MoELayer,
        submodules=MoESubmodules(
            experts=ModuleSpec(module=Experts, params={"form": mixture.form}),
            shared_experts=ModuleSpec(module=SharedExperts, submodules=shared),
            router=partial(Router, routing=mixture.routing),
        ),
    )


def block_spec(
    config: TransformerConfig,
    mixer: Callable[[int], Mixer],
    linears: Linears,
    mixture: Mixture | None,
    vp_stage: int | None,
) -> TransformerBlockSubmodules:
    """The layers that this pipeline stage builds, and the final norm, which the last stage applies.

    `mixer`: of the layer of that number in the model, from 0. `config.moe_layer_freq` says of
    each layer of the model whether it has a `mixture`.
    """
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    sparse = config.moe_layer_freq[first : first + count] if mixture else [False] * count
    layers = [
        layer_spec(mixer(first + place), linears, mixture if has_experts else None)
        for place, has_experts in enumerate(sparse)
    ]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=Norm)
