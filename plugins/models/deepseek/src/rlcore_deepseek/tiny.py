"""The tiny random models of `--model deepseek`, `deepseek_v32` and `kimi_linear`."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_DEEPSEEK, TINY_LATENT, TINY_SPARSE, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    **TINY_DEEPSEEK,
    # SGLang knows no positions but yarn's on a CPU, and a factor of 1 scales nothing
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 1.0,
        "original_max_position_embeddings": TINY_DEEPSEEK["max_position_embeddings"],
    },
}


V32: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    **TINY_SPARSE,
}
"""A tiny DeepSeek-V3.2."""


KIMI_LINEAR: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    **TINY_LATENT,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["sparse", "sparse"],
    "linear_num_heads": 4,
    "linear_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 8,
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
