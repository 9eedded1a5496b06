"""Qwen2 and Qwen3, dense, on megatron-core."""

from typing import Any

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Linears
from rlcore_megatron.mcore.layers.linear import BiasedLinear


class QwenBridge(MBridge):
    """mbridge has both families right, but for what `check` refuses."""

    def family(self, model_type: str) -> type[Any]:
        from mbridge.models.qwen2 import Qwen2Bridge
        from mbridge.models.qwen3 import Qwen3Bridge

        families: dict[str, type[Any]] = {"qwen2": Qwen2Bridge, "qwen3": Qwen3Bridge}
        if model_type not in families:
            raise ModelError(
                f"{self.path}: model_type {model_type!r} is not one of this bridge ({', '.join(families)})."
            )
        family = families[model_type]
        if not self._biased():
            return family
        projection = {
            "self_attention.linear_proj.bias": ["model.layers.{layer_number}.self_attn.o_proj.bias"]
        }
        names = {**family._ATTENTION_MAPPING, **projection}

        def build_config(inner: Any) -> Any:
            return inner._build_base_config(qk_layernorm=True, add_qkv_bias=True)

        return type(family.__name__, (family,), {"_ATTENTION_MAPPING": names, "_build_config": build_config})

    def linears(self) -> Linears:
        return Linears(projection=BiasedLinear) if self._biased() else Linears()

    def _biased(self) -> bool:
        """A Qwen3 with attention biases: Qwen2 always has those of query, key and value, and no other."""
        return bool(self.hf_config.model_type == "qwen3" and self.hf_config.attention_bias)
