"""Qwen2 and Qwen3, dense, on megatron-core."""

from collections.abc import Mapping
from typing import Any

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Linears
from rlcore_megatron.mcore.layers.linear import BiasedLinear

QWEN2, QWEN3 = "qwen2", "qwen3"


class QwenBridge(MBridge):
    """Qwen2 has biases of query, key and value, and no other; Qwen3 has norms, and may have biases."""

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        if hf_config.model_type not in (QWEN2, QWEN3):
            raise ModelError(
                f"{self.path}: model_type {hf_config.model_type!r} is not one of this bridge "
                f"({QWEN2}, {QWEN3})."
            )

    def fields(self) -> Mapping[str, Any]:
        is_qwen2 = self.hf_config.model_type == QWEN2
        return {"qk_layernorm": not is_qwen2, "add_qkv_bias": is_qwen2 or self.hf_config.attention_bias}

    def linears(self) -> Linears:
        is_biased = self.hf_config.model_type == QWEN3 and self.hf_config.attention_bias
        return Linears(projection=BiasedLinear) if is_biased else Linears()
