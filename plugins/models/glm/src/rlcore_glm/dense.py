"""GLM-4 on megatron-core: norms before and after each block, and half of each head turned, interleaved."""

from collections.abc import Mapping
from typing import Any, ClassVar

from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.bridges.names import LAYER, Names
from rlcore_megatron.mcore.layers.backend import Linears
from rlcore_megatron.mcore.layers.linear import LinearNorm


class GlmNames(Names):
    """Norms behind each block, and one matrix for gate and up."""

    _ATTENTION_MAPPING: ClassVar = {
        **Names._ATTENTION_MAPPING,
        "self_attention.linear_proj.post_layer_norm_weight": [f"{LAYER}.post_self_attn_layernorm.weight"],
    }
    _MLP_MAPPING: ClassVar = {
        **Names._MLP_MAPPING,
        "mlp.linear_fc1.weight": [f"{LAYER}.mlp.gate_up_proj.weight"],
        "mlp.linear_fc2.post_layer_norm_weight": [f"{LAYER}.post_mlp_layernorm.weight"],
    }


class GlmBridge(MBridge):
    """`Glm4ForCausalLM`."""

    names = GlmNames
    interleaved = True
    partial_rotary = True

    def fields(self) -> Mapping[str, Any]:
        return {"add_qkv_bias": self.hf_config.attention_bias}

    def linears(self) -> Linears:
        return Linears(projection=LinearNorm, down=LinearNorm)
