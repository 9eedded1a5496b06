"""The tiny random models of `--model qwen3_next` and `qwen3_5`: a gated delta net and a gated attention."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    **TINY_SIZES,
    "head_dim": 32,  # half of it without positions
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}

NEXT: dict[str, Any] = {
    **QWEN3_5,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

QWEN3_5_MOE: dict[str, Any] = {
    **NEXT,
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
}

CONSTANTS = {
    "linear_attn.norm.weight": 1.0,
    "norm.weight": 0.0,  # the others are zero-centered
    "A_log": 0.0,
    "dt_bias": -3.0,  # a state forgets 5 % with each token
}
WIDTHS = dict.fromkeys(("linear_attn.out_proj.weight", "down_proj.weight", "experts.down_proj"), 0.03)
"""Standard deviations. At first other blocks add little to the residual stream: attention learns sooner."""


def tiny_next(directory: str | Path, seed: int = 0) -> Path:
    """Write Qwen3-Next's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, NEXT, seed, constants=CONSTANTS, widths=WIDTHS)


def tiny_qwen3_5_moe(directory: str | Path, seed: int = 0) -> Path:
    """Write the directory of Qwen3.5 with experts; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, QWEN3_5_MOE, seed, constants=CONSTANTS, widths=WIDTHS)


def tiny_qwen3_5(directory: str | Path, seed: int = 0) -> Path:
    """Write Qwen3.5's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, QWEN3_5, seed, constants=CONSTANTS, widths=WIDTHS)
