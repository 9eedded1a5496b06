"""The tiny random Llama that `--model llama` trains on a laptop."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **TINY_SIZES,
    "mlp_bias": False,
}


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed)
