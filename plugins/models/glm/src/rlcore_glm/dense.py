"""GLM-4 on megatron-core: norms before and after each block, and half of each head turned, interleaved."""

from typing import Any

from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Linears
from rlcore_megatron.mcore.layers.linear import LinearNorm

ATTENTION = {
    "self_attention.linear_proj.post_layer_norm_weight": [
        "model.layers.{layer_number}.post_self_attn_layernorm.weight"
    ],
}
MLP = {
    "mlp.linear_fc1.weight": ["model.layers.{layer_number}.mlp.gate_up_proj.weight"],
    "mlp.linear_fc2.post_layer_norm_weight": ["model.layers.{layer_number}.post_mlp_layernorm.weight"],
}


class GlmBridge(MBridge):
    """`Glm4ForCausalLM`, which mbridge lacks: its Qwen2 with other norms and one matrix for gate and up."""

    interleaved = True
    partial_rotary = True

    def family(self, model_type: str) -> type[Any]:
        from mbridge.models.qwen2 import Qwen2Bridge

        def build_config(inner: Any) -> Any:
            return inner._build_base_config(add_qkv_bias=inner.hf_config.attention_bias, qk_layernorm=False)

        body = {
            "_ATTENTION_MAPPING": {**Qwen2Bridge._ATTENTION_MAPPING, **ATTENTION},
            "_MLP_MAPPING": {**Qwen2Bridge._MLP_MAPPING, **MLP},
            "_build_config": build_config,
        }
        return type("GLM4Bridge", (Qwen2Bridge,), body)

    def linears(self) -> Linears:
        return Linears(projection=LinearNorm, down=LinearNorm)
