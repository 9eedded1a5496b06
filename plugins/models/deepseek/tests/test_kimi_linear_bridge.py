"""Kimi-Linear on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import KimiLinearConfig

from rlcore import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, BridgeConformance

MIXED = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]


class TestKimiLinear(BridgeConformance):
    """A channel of a key fades for itself; latent attention has no positions."""

    bridge = Part(name="kimi_linear", factory="rlcore_deepseek.kimi_linear:KimiLinearBridge")
    config_class = KimiLinearConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {
        **BridgeConformance.shape,
        "num_hidden_layers": 3,
        "layer_types": MIXED[:3],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "moe_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.5,
        "bos_token_id": None,
        "rms_norm_eps": 1e-1,  # as of Qwen3-Next: the delta net's norm divides by what may be near 0
    }
    axes: ClassVar = {
        "sizes": (
            {},
            {"linear_head_dim": 6, "linear_num_heads": 8, "linear_conv_kernel_dim": 2, "q_lora_rank": 20},
        ),
        "routing": ({}, {"n_group": 3, "topk_group": 2, "norm_topk_prob": False}),
        "dense": ({"mlp_layer_types": ["sparse"] * 3, "n_shared_experts": 2}, {}),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {"mixed": {"num_hidden_layers": 4, "layer_types": MIXED}}
    refused: ClassVar = {
        "attention_bias is not supported": {"attention_bias": True},
        "num_key_value_heads 2 is not supported": {"num_key_value_heads": 2},
        "layer_types has 'chunked_attention'": {"layer_types": ["chunked_attention"] * 3},
        "mla_use_nope False is not supported": {"mla_use_nope": False},
        "tie_word_embeddings True is not supported": {"tie_word_embeddings": True},
        "moe_router_activation_func 'softmax'": {"moe_router_activation_func": "softmax"},
    }
