"""GLM-4.7-Flash on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import Glm4MoeLiteConfig

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, ROPES, BridgeConformance

SIZES = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}
ROUTED = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.8}
PLAIN = {"q_lora_rank": 20, **ROPES[0]}


class TestGlm4MoeLite(BridgeConformance):
    """Latent attention and experts."""

    bridge = Part(name="glm4_moe_lite", factory="rlcore_glm.lite:GlmMoeLiteBridge")
    config_class = Glm4MoeLiteConfig
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {**BridgeConformance.shape, **SIZES}
    axes: ClassVar = {
        "attention": (
            PLAIN,
            {"q_lora_rank": None, **ROPES[0], "rope_interleave": False},
            {"q_lora_rank": 20, **ROPES[1]},
            {"q_lora_rank": None, **ROPES[2], "rope_interleave": False},
        ),
        "routing": (
            ROUTED,
            {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        ),
        "layers": (
            {"n_shared_experts": 1, "tie_word_embeddings": False},
            {"mlp_layer_types": ["sparse", "dense"], "n_shared_experts": 2, "tie_word_embeddings": True},
        ),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {"first dense": {**PLAIN, **ROUTED, "num_hidden_layers": 4}}
    refused: ClassVar = {
        "attention_bias is not supported": {"attention_bias": True},
        "num_key_value_heads 2 is not supported": {"num_key_value_heads": 2},
        "partial_rotary_factor is not supported": {
            "rope_parameters": {**ROPES[0]["rope_parameters"], "partial_rotary_factor": 0.5}
        },
    }
