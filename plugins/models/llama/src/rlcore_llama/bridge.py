"""Llama, Mistral and Ministral 3 on megatron-core."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.layers.backend import Linears, Mixer, self_attention
from rlcore_megatron.mcore.layers.linear import BiasedLinear, BiasedNormLinear, NormLinear, OutputLinear
from rlcore_megatron.mcore.layers.rotary import Rotary

GROWTH = ("llama_4_scaling_beta", "original_max_position_embeddings")
"""The fields of Ministral 3's positions by which its queries grow."""


class LlamaBridge(MBridge):
    """With the biases of `attention_bias` and `mlp_bias`."""

    def fields(self) -> Mapping[str, Any]:
        return {"add_qkv_bias": self.hf_config.attention_bias}

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

    def mixer(self, layer: int) -> Mixer:
        window = self.hf_config.sliding_window
        return self_attention(self.config, self.shared_rotary, self.linears(), window=window)


class Ministral3Bridge(MistralBridge):
    """`Ministral3ForCausalLM`: Mistral whose queries grow with their position; and what sees images with it.

    The decoder of `Mistral3ForConditionalGeneration` is this, or Mistral.
    """

    carried = ("vision_tower.", "multi_modal_projector.")

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        lacking = {*GROWTH} - {name for name, value in hf_config.rope_parameters.items() if value}
        if hf_config.model_type == "ministral3" and lacking:
            raise ModelError(
                f"{self.path}: its rope_parameters lack {min(lacking)}, which scales its queries."
            )

    def rotary(self) -> Rotary:
        if self.hf_config.model_type == "mistral":
            return super().rotary()
        factor, length = (self.hf_config.rope_parameters[name] for name in GROWTH)
        return replace(super().rotary(), growth=(float(factor), int(length)))
