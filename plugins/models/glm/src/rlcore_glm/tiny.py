"""The tiny random GLM-4 and GLM-5 that `--model glm` and `--model glm5` train on a laptop."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, TINY_SPARSE, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    **TINY_SIZES,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}


GLM5: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    **TINY_SPARSE,
    "indexer_types": ["full", "shared"],
    "indexer_rope_interleave": True,  # SGLang reads it, which transformers does not
}


def tiny_glm5(directory: str | Path, seed: int = 0) -> Path:
    """Write GLM-5's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, GLM5, seed)


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
