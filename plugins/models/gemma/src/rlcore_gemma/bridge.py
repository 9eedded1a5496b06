"""Gemma 3 (text) on megatron-core: windows and positions by the kind of layer, norms around each block."""

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig

from rlcore import ModelError
from rlcore_megatron.mcore.bridges.bridge import MBridge
from rlcore_megatron.mcore.bridges.names import LAYER, Names
from rlcore_megatron.mcore.layers.backend import Linears, Mixer, self_attention
from rlcore_megatron.mcore.layers.linear import LinearNorm
from rlcore_megatron.mcore.layers.rotary import Rotary
from rlcore_toolkit import current_device

SLIDING, FULL = "sliding_attention", "full_attention"
_OFF = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention", "attention_bias")
"""Fields that must be null or false."""


class GemmaNames(Names):
    """Norms before and after each block."""

    _ATTENTION_MAPPING: ClassVar = {
        **Names._ATTENTION_MAPPING,
        "self_attention.linear_proj.post_layer_norm_weight": [f"{LAYER}.post_attention_layernorm.weight"],
    }
    _MLP_MAPPING: ClassVar = {
        **Names._MLP_MAPPING,
        "mlp.linear_fc1.layer_norm_weight": [f"{LAYER}.pre_feedforward_layernorm.weight"],
        "mlp.linear_fc2.post_layer_norm_weight": [f"{LAYER}.post_feedforward_layernorm.weight"],
    }


class GemmaBridge(MBridge):
    """`Gemma3ForCausalLM`, and the decoder of `Gemma3ForConditionalGeneration`."""

    names = GemmaNames
    activation = ("hidden_activation", "gelu_pytorch_tanh")
    kinds = (SLIDING, FULL)
    windows = True
    carried = ("vision_tower.", "multi_modal_projector.")

    def fields(self) -> Mapping[str, Any]:
        return {
            "activation_func": partial(functional.gelu, approximate="tanh"),
            "layernorm_zero_centered_gamma": True,
            "qk_layernorm": True,
            "softmax_scale": float(self.hf_config.query_pre_attn_scalar) ** -0.5,
        }

    def check(self, hf_config: PretrainedConfig) -> None:
        super().check(hf_config)
        for field in _OFF:
            if getattr(hf_config, field):
                raise ModelError(f"{self.path}: {field} {getattr(hf_config, field)} is not supported.")

    def ropes(self, hf_config: PretrainedConfig) -> Sequence[Mapping[str, Any]]:
        return list(hf_config.rope_parameters.values())

    @cached_property
    def rotary_of(self) -> Mapping[str, Rotary]:
        """The positions of each kind of layer."""
        rotary = {}
        for kind, rope in self.hf_config.rope_parameters.items():
            config = copy.copy(self.hf_config)
            config.rope_parameters = rope
            rotary[kind] = Rotary.of(config, current_device())
        return rotary

    def linears(self) -> Linears:
        return Linears(projection=LinearNorm, down=LinearNorm)

    def mixer(self, layer: int) -> Mixer:
        kind = self.hf_config.layer_types[layer]
        window = int(self.hf_config.sliding_window) if kind == SLIDING else None
        return self_attention(self.config, self.rotary_of[kind], self.linears(), window=window)

    def build(self) -> list[nn.Module]:
        chunks = super().build()
        for chunk in chunks:
            if isinstance(embedding := getattr(chunk, "embedding", None), nn.Module):
                embedding.register_forward_hook(partial(_scaled, self.hf_config.hidden_size**0.5))
        return chunks


def _scaled(scale: float, module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
    """The embeddings times `scale`, which transformers rounds to their dtype."""
    return embedded * torch.tensor(scale, dtype=embedded.dtype, device=embedded.device)
