"""The tiny random model that `--model my_plugin` trains on a laptop."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    **TINY_SIZES,
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "sliding_window": None,
}


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
