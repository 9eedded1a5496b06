"""Gemma 3 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import Gemma3TextConfig

from rlcore import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import HEADS, TIED, BridgeConformance

LOCAL = {"rope_type": "default", "rope_theta": 1e3}
LINEAR = {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}


class TestGemma3(BridgeConformance):
    bridge = Part(name="gemma3", factory="rlcore_gemma.bridge:GemmaBridge")
    config_class = Gemma3TextConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "bos_token_id": None,
        "sliding_window": 4,
        "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    axes: ClassVar = {
        "heads": HEADS,
        "rope": (
            {"rope_parameters": {"sliding_attention": LOCAL, "full_attention": LINEAR}},
            {"rope_parameters": {"sliding_attention": LOCAL, "full_attention": YARN}},
        ),
        "tied": TIED,
        "layers": ({}, {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 1}),
    }
    layout_models: ClassVar = {
        "tied": {
            "num_hidden_layers": 4,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "tie_word_embeddings": True,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
        },
    }
    refused: ClassVar = {
        "layer_types has 'chunked_attention'": {"layer_types": ["chunked_attention"] * 2},
        "no sliding_window": {"sliding_window": None},
        "hidden_activation 'silu'": {"hidden_activation": "silu"},
        "attn_logit_softcapping 30.0": {"attn_logit_softcapping": 30.0},
        "final_logit_softcapping 30.0": {"final_logit_softcapping": 30.0},
        "use_bidirectional_attention True": {"use_bidirectional_attention": True},
        "attention_bias True": {"attention_bias": True},
    }
