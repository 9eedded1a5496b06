"""GLM-4.5, 4.6 and 4.7 on megatron-core."""

from collections.abc import Mapping
from typing import Any

from rlcore_megatron.mcore.bridges.moe_bridge import SharedExpertsBridge


class GlmMoeBridge(SharedExpertsBridge):
    """`Glm4MoeForCausalLM`."""

    partial_rotary = True

    def fields(self) -> Mapping[str, Any]:
        config = self.hf_config
        own = {"qk_layernorm": config.use_qk_norm, "add_qkv_bias": config.attention_bias}
        return {**super().fields(), **own}
