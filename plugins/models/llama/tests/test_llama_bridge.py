"""Llama, Mistral and Ministral 3 on megatron-core are what transformers computes."""

from typing import ClassVar

from transformers import LlamaConfig, Ministral3Config, MistralConfig

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


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 3}
GROWING = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}


class TestMinistral3(BridgeConformance):
    """Ministral 3: queries grow with each stretch of their positions, here of 3 or of 2 tokens."""

    bridge = Part(name="ministral3", factory="rlcore_llama.bridge:Ministral3Bridge")
    config_class = Ministral3Config
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "rope": (
            {"rope_parameters": GROWING},
            {"rope_parameters": {**YARN, "original_max_position_embeddings": 2, "llama_4_scaling_beta": 0.1}},
        ),
        "tied": TIED,
        "heads": HEADS,
        "window": ({"sliding_window": None}, {"sliding_window": 4}),
    }
    layout_models: ClassVar = {
        "growing": {
            **HEADS[0],
            "num_hidden_layers": 4,
            "rope_parameters": GROWING,
            "tie_word_embeddings": True,
        }
    }
    refused: ClassVar = {
        "its rope_parameters lack llama_4_scaling_beta": {"rope_parameters": YARN},
        "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
    }
