"""The tiny random models of `--model deepseek`, `deepseek_v32` and `kimi_linear`."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    **TINY_SIZES,
    "num_key_value_heads": TINY_SIZES["num_attention_heads"],
    "q_lora_rank": None,
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
    # SGLang knows no positions but yarn's on a CPU, and a factor of 1 scales nothing; it reads the three
    # fields behind them as well, which transformers does not.
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 1.0,
        "original_max_position_embeddings": TINY_SIZES["max_position_embeddings"],
    },
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
}


V32: dict[str, Any] = {
    **CONFIG,
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "q_lora_rank": 48,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    # so few that prompts and responses of the demo's tasks have more
    "index_topk": 8,
    "index_n_heads": 16,
    "index_head_dim": 16,
}
"""A tiny DeepSeek-V3.2."""


KIMI_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    **TINY_SIZES,
    "num_key_value_heads": TINY_SIZES["num_attention_heads"],
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["sparse", "sparse"],
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "routed_scaling_factor": 1.0,
}
"""A tiny Kimi-Linear."""


def tiny_kimi_linear(directory: str | Path, seed: int = 0) -> Path:
    """Write Kimi-Linear's Hugging Face directory; returns it. The same seed gives the same bytes."""
    constants = {"dt_bias": -3.0, "bias": 0.0, "": 1.0}  # a state forgets 5 % with each token
    return write_tiny_model(directory, KIMI_LINEAR, seed, constants=constants)


def tiny_v32(directory: str | Path, seed: int = 0) -> Path:
    """Write DeepSeek-V3.2's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, V32, seed)


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
