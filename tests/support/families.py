"""A small model of each family: what its config says beside what `inputs.make_model` says of all."""

from typing import Any

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LATENT = {
    **{"q_lora_rank": 48, "kv_lora_rank": 32, "num_key_value_heads": 4, "rope_parameters": YARN},
    **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "head_dim": 16, "v_head_dim": 32},
    **{"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    **{"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
    **{"moe_layer_freq": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},  # SGLang reads them
}
SHARED = {
    **{"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1},
    **{"use_qk_norm": True, "attention_bias": True, "num_nextn_predict_layers": 0},
}
FLASH = {
    **LATENT,
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "routed_scaling_factor": 1.8},
    "rms_norm_eps": 1e-6,  # at any other value SGLang's norms of the compressed vectors are not transformers'
}
MINIMAX = {
    **{"num_local_experts": 8, "num_experts_per_tok": 3},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
}
DELTA = {
    **{"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
}
QWEN3_5_MOE = {
    **DELTA,
    **{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    "shared_expert_intermediate_size": 64,
}
SCALED = {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}
WINDOWS = {
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    **{"sliding_window": 16, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
}
DELTA_NETS = {"qwen3_next": QWEN3_5_MOE, "qwen3_5_text": DELTA, "qwen3_5_moe_text": QWEN3_5_MOE}
SPARSE = {
    **LATENT,
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "n_group": 1, "topk_group": 1},
    **{"index_topk": 8, "index_n_heads": 16, "index_head_dim": 32},
    **{"index_topk_freq": 2, "index_skip_topk_offset": 1},  # every other layer has an indexer
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "glm4": {},
    "qwen2": {},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64},
    "glm4_moe": SHARED,
    "glm4_moe_lite": FLASH,
    "deepseek_v3": LATENT,
    "glm_moe_dsa": SPARSE,
    "minimax_m2": MINIMAX,
}
NO_SGLANG = ("minimax_m2", "glm_moe_dsa")
"""Those that SGLang computes on GPUs alone."""
EXPERTS = ("qwen3_moe", "glm4_moe", "glm4_moe_lite", "deepseek_v3", "glm_moe_dsa", "minimax_m2")
