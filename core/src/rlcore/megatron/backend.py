"""The layers of a dense decoder in plain torch: what TransformerEngine's spec would give, without it."""

from dataclasses import dataclass

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from rlcore.megatron.attention import CoreAttention
from rlcore.megatron.linear import GatedMLP, NormLinear, OutputLinear
from rlcore.megatron.norms import Norm
from rlcore.megatron.rotary import Rotary


@dataclass(frozen=True, kw_only=True)
class Linears:
    """The classes of a layer's linear modules; `rlcore.megatron.linear` has those of other families."""

    qkv: type = NormLinear
    projection: type = OutputLinear
    up: type = NormLinear
    down: type = OutputLinear


def layer_spec(config: TransformerConfig, rotary: Rotary, linears: Linears | None = None) -> ModuleSpec:
    """One pre-norm decoder layer; both norms are fused in front of the linear layers that they feed."""
    linears = linears or Linears()
    qk_norm = Norm if config.qk_layernorm else IdentityOp
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=linears.qkv,
            core_attention=ModuleSpec(module=CoreAttention, params={"rotary": rotary}),
            linear_proj=linears.projection,
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )
    mlp = ModuleSpec(
        module=GatedMLP, submodules=MLPSubmodules(linear_fc1=linears.up, linear_fc2=linears.down)
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            mlp=mlp,
            mlp_bda=get_bias_dropout_add,
        ),
    )


def block_spec(
    config: TransformerConfig,
    rotary: Rotary,
    linears: Linears | None = None,
    vp_stage: int | None = None,
) -> TransformerBlockSubmodules:
    """The layers that this pipeline stage builds, and the final norm, which the last stage applies."""
    count = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(
        layer_specs=[layer_spec(config, rotary, linears)] * count, layer_norm=Norm
    )
