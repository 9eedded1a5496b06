"""The tiny random GLM-4 that `--model glm` trains on a laptop."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    **TINY_SIZES,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
