"""The names of weights, in a directory and in megatron: mbridge's maps, for families to build on."""

from typing import Any, ClassVar

from mbridge.core import LLMBridge

LAYER = "model.layers.{layer_number}"


class Names(LLMBridge):  # type: ignore[misc] # mbridge is untyped
    """Those of a dense decoder of the Llama form, with every bias that it may have."""

    _ATTENTION_MAPPING: ClassVar = {
        **LLMBridge._ATTENTION_MAPPING,
        "self_attention.linear_proj.bias": [f"{LAYER}.self_attn.o_proj.bias"],
    }
    _MLP_MAPPING: ClassVar = {
        **LLMBridge._MLP_MAPPING,
        "mlp.linear_fc1.bias": [f"{LAYER}.mlp.gate_proj.bias", f"{LAYER}.mlp.up_proj.bias"],
        "mlp.linear_fc2.bias": [f"{LAYER}.mlp.down_proj.bias"],
    }

    def _build_config(self) -> Any:
        return self._build_base_config()
