"""Llama and Mistral on megatron-core."""

from typing import Any, cast

from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Linears, Mixer, self_attention
from rlcore_megatron.mcore.layers.linear import BiasedLinear, BiasedNormLinear, NormLinear, OutputLinear

ATTENTION = {
    "self_attention.linear_proj.bias": ["model.layers.{layer_number}.self_attn.o_proj.bias"],
}
MLP = {
    "mlp.linear_fc1.bias": [
        "model.layers.{layer_number}.mlp.gate_proj.bias",
        "model.layers.{layer_number}.mlp.up_proj.bias",
    ],
    "mlp.linear_fc2.bias": ["model.layers.{layer_number}.mlp.down_proj.bias"],
}


class LlamaBridge(MBridge):
    """mbridge's Llama, with the biases of `attention_bias` and `mlp_bias`, which it has in part."""

    def family(self, model_type: str) -> type[Any]:
        from mbridge.models.llama import LLaMABridge

        names = {
            "_ATTENTION_MAPPING": {**LLaMABridge._ATTENTION_MAPPING, **ATTENTION},
            "_MLP_MAPPING": {**LLaMABridge._MLP_MAPPING, **MLP},
        }
        return type("LLaMABridge", (LLaMABridge,), names)

    def linears(self) -> Linears:
        # megatron has one switch for the biases of projection and MLP together, Hugging Face one for each
        return Linears(
            projection=BiasedLinear if self.hf_config.attention_bias else OutputLinear,
            up=BiasedNormLinear if self.hf_config.mlp_bias else NormLinear,
            down=BiasedLinear if self.hf_config.mlp_bias else OutputLinear,
        )


class MistralBridge(MBridge):
    """`MistralForCausalLM`: Llama without biases; a token sees `sliding_window` tokens, or all before it."""

    windows = True

    def family(self, model_type: str) -> type[Any]:
        from mbridge.models.llama import LLaMABridge

        return cast(type[Any], LLaMABridge)

    def mixer(self, layer: int) -> Mixer:
        window = self.hf_config.sliding_window
        return self_attention(self.config, self.shared_rotary, self.linears(), window=window)
