"""`LatentBridge`: a base for families with latent attention and experts, as DeepSeek-V3 has them."""

import math
from typing import ClassVar

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.imports import device
from rlcore_megatron.mcore.latent import Latent
from rlcore_megatron.mcore.moe_bridge import ExpertNames, SharedExpertsBridge
from rlcore_megatron.mcore.rotary import Rotary

_NORM_EPS = 1e-6
"""Of the norms of the compressed vectors, whatever `rms_norm_eps` says of the others."""


class LatentNames(ExpertNames):
    """The names of the attention's weights."""

    _ATTENTION_MAPPING: ClassVar = {
        f"self_attention.{ours}.weight": [f"model.layers.{{layer_number}}.self_attn.{theirs}.weight"]
        for ours, theirs in (
            ("linear_q_proj", "q_proj"),
            ("linear_q_down_proj", "q_a_proj"),
            ("linear_q_up_proj", "q_b_proj"),
            ("linear_kv_down_proj", "kv_a_proj_with_mqa"),
            ("linear_kv_up_proj", "kv_b_proj"),
            ("linear_proj", "o_proj"),
        )
    } | {
        "self_attention.linear_q_up_proj.layer_norm_weight": [
            "model.layers.{layer_number}.self_attn.q_a_layernorm.weight"
        ],
        "self_attention.linear_kv_up_proj.layer_norm_weight": [
            "model.layers.{layer_number}.self_attn.kv_a_layernorm.weight"
        ],
    }
    _OTHER_MAPPING: ClassVar = {
        "input_layernorm.weight": ["model.layers.{layer_number}.input_layernorm.weight"]
    }


class LatentBridge(SharedExpertsBridge):
    """Latent attention, and experts chosen within the best groups."""

    names = LatentNames

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if hf_config.attention_bias:
            raise ModelError(f"{self.path}: attention_bias is not supported with latent attention.")
        if hf_config.num_key_value_heads != hf_config.num_attention_heads:
            raise ModelError(
                f"{self.path}: num_key_value_heads {hf_config.num_key_value_heads} is not supported: latent "
                f"attention expands keys and values to all {hf_config.num_attention_heads} heads."
            )

    def rotary(self) -> Rotary:
        kind = self.hf_config.rope_parameters["rope_type"]
        return Rotary.of(self.hf_config, kind, device(), interleaved=bool(self.hf_config.rope_interleave))

    def latent(self) -> Latent:
        config = self.hf_config
        return Latent(
            query_rank=config.q_lora_rank,
            rank=config.kv_lora_rank,
            plain=config.qk_nope_head_dim,
            turned=config.qk_rope_head_dim,
            value=config.v_head_dim,
            scale=_product_scale(config),
            norm_eps=_NORM_EPS,
        )


def _product_scale(config: PretrainedConfig) -> float:
    """What multiplies the products of queries and keys: yarn's `mscale_all_dim` is in it, twice."""
    scale = float((config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5)
    rope = config.rope_parameters
    if rope["rope_type"] == "default" or rope.get("factor", 1.0) <= 1.0:
        return scale
    grown = 0.1 * float(rope.get("mscale_all_dim", 0.0)) * math.log(rope["factor"]) + 1.0
    return scale * grown * grown
