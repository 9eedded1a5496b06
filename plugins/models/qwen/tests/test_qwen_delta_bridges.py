"""The bridges of Qwen3-Next and Qwen3.5 are held to what transformers computes."""

from typing import ClassVar

from transformers import Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from rlcore import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, TIED, BridgeConformance, Choice

ROPE: Choice = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
SHAPE: Choice = {
    **BridgeConformance.shape,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    # The delta net's output norm divides by what may be near 0, as k·q of a first token is. With 1e-6
    # transformers itself is 1e-5 away from float64; test_delta_net.py compares that with float64.
    "rms_norm_eps": 1e-1,
}
EXPERTS: Choice = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
}
HEADS: tuple[Choice, ...] = ({}, {"linear_num_value_heads": 4, "linear_value_head_dim": 16})
TAPS: tuple[Choice, ...] = ({}, {"linear_conv_kernel_dim": 2})
MIXED: Choice = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
REFUSED: dict[str, Choice] = {
    "attention_bias is not supported": {"attention_bias": True},
    "attn_output_gate false is not supported": {"attn_output_gate": False},
    "linear_num_key_heads 4 does not divide linear_num_value_heads 6": {"linear_num_value_heads": 6},
    "layer_types has 'sliding_attention'": {"layer_types": ["sliding_attention"] * 3},
    "layer_types has 'chunked_attention'": {"layer_types": ["chunked_attention"] * 3},
}


class TestNextBridge(BridgeConformance):
    bridge = Part(name="qwen3_next", factory="rlcore_qwen.next:NextBridge")
    config_class = Qwen3NextConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar[Choice] = {**SHAPE, **EXPERTS, "rope_parameters": ROPE}
    axes: ClassVar = {
        "tied": TIED,
        "heads": HEADS,
        "taps": TAPS,
        "dense": ({}, {"mlp_only_layers": [1]}),
        "top": ({}, {"norm_topk_prob": False}),
    }
    layouts = EXPERT_LAYOUTS
    layout_models: ClassVar = {"mixed": MIXED}
    refused: ClassVar = REFUSED


class TestDenseBridge(BridgeConformance):
    bridge = Part(name="qwen3_5", factory="rlcore_qwen.qwen3_5:DenseBridge")
    config_class = Qwen3_5TextConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar[Choice] = {
        **SHAPE,
        "rope_parameters": {**ROPE, "mrope_interleaved": True, "mrope_section": [1, 1, 1]},
    }
    axes: ClassVar = {"tied": TIED, "heads": HEADS, "taps": TAPS, "rope": ({}, {"rope_parameters": ROPE})}
    layout_models: ClassVar = {"mixed": MIXED}
    refused: ClassVar = REFUSED


class TestSparseBridge(BridgeConformance):
    bridge = Part(name="qwen3_5_moe", factory="rlcore_qwen.qwen3_5:SparseBridge")
    config_class = Qwen3_5MoeTextConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar[Choice] = {
        **{field: value for field, value in SHAPE.items() if field != "intermediate_size"},
        **EXPERTS,
        "rope_parameters": ROPE,
    }
    axes: ClassVar = {"tied": TIED, "heads": HEADS}
    layouts = EXPERT_LAYOUTS
    layout_models: ClassVar = {"mixed": MIXED}
    refused: ClassVar = REFUSED
