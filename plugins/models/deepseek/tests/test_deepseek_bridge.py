"""DeepSeek-V3 on megatron-core is what transformers computes."""

from typing import ClassVar

from transformers import DeepseekV3Config

from rlcore.api.part import Part
from rlcore_local.testing import answers
from rlcore_megatron.testing.bridges import EXPERT_LAYOUTS, ROPES, BridgeConformance

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
SIZES = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "num_mtp_layers": 0,
}
WHOLE = {"q_lora_rank": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
YARNED = {"q_lora_rank": 20, "rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.9}}
ROUTED = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}


class TestDeepseekV3(BridgeConformance):
    """Latent attention and experts."""

    bridge = Part(name="deepseek_v3", factory="rlcore_deepseek.bridge:DeepseekBridge")
    config_class = DeepseekV3Config
    answers: ClassVar = staticmethod(answers)
    shape: ClassVar = {**BridgeConformance.shape, **SIZES}
    axes: ClassVar = {
        "attention": (
            YARNED,
            WHOLE,
            {"q_lora_rank": 20, "rope_parameters": YARN, "rope_interleave": False},
            {"q_lora_rank": None, **ROPES[1]},
            {"q_lora_rank": 20, **ROPES[2], "rope_interleave": False},
        ),
        "routing": (
            ROUTED,
            {"n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        ),
        "layers": (
            {"first_k_dense_replace": 1, "n_shared_experts": 1, "tie_word_embeddings": False},
            {"first_k_dense_replace": 0, "n_shared_experts": 2, "tie_word_embeddings": True},
        ),
    }
    layouts: ClassVar = EXPERT_LAYOUTS
    layout_models: ClassVar = {
        "first dense": {**YARNED, **ROUTED, "first_k_dense_replace": 1, "num_hidden_layers": 4},
    }
    refused: ClassVar = {
        "rope_type 'dynamic' is not supported": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        },
        "attention_bias is not supported": {"attention_bias": True},
        "num_key_value_heads 2 is not supported": {"num_key_value_heads": 2},
        "quantized by 'gptq'": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    }
