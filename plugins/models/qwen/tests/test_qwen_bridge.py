"""Qwen on megatron-core is what transformers computes."""

from typing import Any, ClassVar

from transformers import Qwen2Config, Qwen3Config

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import HEADS, LAYOUTS, ROPES, TIED, BridgeConformance, Choice

QWEN = Part(name="qwen", factory="rlcore_qwen.bridge:QwenBridge")
REFUSED: dict[str, Choice] = {
    "use_sliding_window is not supported": {
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"] * 2,
    },
    "rope_type 'dynamic' is not supported": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    },
    "hidden_act 'gelu' is not supported": {"hidden_act": "gelu"},
    "its weights are quantized by 'fp8'": {"quantization_config": {"quant_method": "fp8"}},
    "config.json cannot be read: ValueError: `num_hidden_layers` (3)": {"num_hidden_layers": 3},
    "lacks the weight 'model.layers.2.": {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
    "do not fit its config.json: model.embed_tokens.weight (99, 48)": {"vocab_size": 98},
    "do not fit its config.json: model.layers.0.mlp.gate_proj.weight (80, 48)": {"intermediate_size": 84},
}

SELECTIVE: Choice = {"recompute-granularity": "selective", "recompute-modules": "core_attn,mlp"}


class TestQwen3(BridgeConformance):
    """Qwen3 dense."""

    bridge = QWEN
    config_class = Qwen3Config
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "tied": TIED,
        "heads": HEADS,
        "rope": ROPES,
        "attention": ({"attention_bias": False}, {"attention_bias": True}),
    }
    layouts: ClassVar = {**LAYOUTS, "selective recompute": (1, SELECTIVE)}
    refused: ClassVar = REFUSED


class TestQwen2(BridgeConformance):
    """Qwen2 and Qwen2.5, whose heads are as wide as the hidden size gives."""

    bridge = QWEN
    config_class = Qwen2Config
    answers: ClassVar = staticmethod(answers)
    axes: ClassVar = {
        "tied": TIED,
        "heads": tuple({key: one[key] for key in one if key != "head_dim"} for one in HEADS),
        "rope": ROPES,
    }
    layout_models: ClassVar[dict[str, Any]] = {
        name: {**fields, "head_dim": 12} for name, fields in BridgeConformance.layout_models.items()
    }
    refused: ClassVar = REFUSED


class TestMimo(TestQwen2):
    """MiMo's decoder; test_qwen_mtp.py has its layer for multi-token prediction."""

    bridge = Part(name="mimo", factory="rlcore_qwen.mimo:MimoBridge")
    most = 1
