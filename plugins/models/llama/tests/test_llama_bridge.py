"""Llama and Mistral on megatron-core are what transformers computes."""

from typing import ClassVar

from transformers import LlamaConfig, MistralConfig

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import HEADS, ROPES, TIED, BridgeConformance


class TestLlama(BridgeConformance):
    """Llama 2 and 3."""

    bridge = Part(name="llama", factory="rlcore_llama.bridge:LlamaBridge")
    config_class = LlamaConfig
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "tied": TIED,
        "heads": HEADS,
        "rope": ROPES,
        "attention": ({"attention_bias": False}, {"attention_bias": True}),
        "mlp": ({"mlp_bias": False}, {"mlp_bias": True}),
    }
    refused: ClassVar = {
        "rope_type 'dynamic' is not supported": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        },
        "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
        "use_sliding_window is not supported": {"sliding_window": 16},
        "partial_rotary_factor is not supported": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        },
    }


class TestMistral(BridgeConformance):
    """Mistral 7B: each token sees a window, or all before it."""

    bridge = Part(name="mistral", factory="rlcore_llama.bridge:MistralBridge")
    config_class = MistralConfig
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "window": ({"sliding_window": 4}, {"sliding_window": None}, {"sliding_window": 1}),
        "tied": TIED,
        "heads": HEADS,
        "rope": ROPES[:2],
    }
    layout_models: ClassVar = {"window": {**HEADS[0], "num_hidden_layers": 4, "sliding_window": 3}}
    refused: ClassVar = {
        "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
        "partial_rotary_factor is not supported": {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
        },
    }
