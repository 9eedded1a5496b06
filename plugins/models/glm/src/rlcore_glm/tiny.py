"""The tiny random GLM-4 and GLM-5 that `--model glm` and `--model glm5` train on a laptop."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    **TINY_SIZES,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}


GLM5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    **TINY_SIZES,
    "num_key_value_heads": TINY_SIZES["num_attention_heads"],
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    # so few that prompts and responses of the demo's tasks have more
    "index_topk": 8,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "indexer_types": ["full", "shared"],
    # SGLang reads these, which transformers does not
    "indexer_rope_interleave": True,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}


def tiny_glm5(directory: str | Path, seed: int = 0) -> Path:
    """Write GLM-5's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, GLM5, seed)


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
