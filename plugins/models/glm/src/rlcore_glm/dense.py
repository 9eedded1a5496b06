"""GLM-4 on megatron-core: norms before and after each block, and half of each head turned, interleaved."""

from typing import Any, ClassVar

from mbridge.models import Qwen2Bridge

from rlcore.megatron.backend import Linears
from rlcore.megatron.bridge import MBridge
from rlcore.megatron.linear import LinearNorm


class Glm4Names(Qwen2Bridge):  # type: ignore[misc] # mbridge, which has no GLM-4 dense, is untyped
    """The names of GLM-4's weights, and the fields of its config, as mbridge wants them."""

    _ATTENTION_MAPPING: ClassVar = {
        **Qwen2Bridge._ATTENTION_MAPPING,
        "self_attention.linear_proj.post_layer_norm_weight": [
            "model.layers.{layer_number}.post_self_attn_layernorm.weight"
        ],
    }
    _MLP_MAPPING: ClassVar = {
        **Qwen2Bridge._MLP_MAPPING,
        "mlp.linear_fc1.weight": ["model.layers.{layer_number}.mlp.gate_up_proj.weight"],
        "mlp.linear_fc2.post_layer_norm_weight": ["model.layers.{layer_number}.post_mlp_layernorm.weight"],
    }

    def _build_config(self) -> Any:
        return self._build_base_config(add_qkv_bias=self.hf_config.attention_bias, qk_layernorm=False)


class GlmBridge(MBridge):
    """`Glm4ForCausalLM`."""

    interleaved = True
    partial_rotary = True

    def family(self, model_type: str) -> type[Any]:
        return Glm4Names

    def linears(self) -> Linears:
        return Linears(projection=LinearNorm, down=LinearNorm)
