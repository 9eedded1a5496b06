"""The tiny random gpt-oss that `--model gpt_oss` trains on a laptop: a layer with a window, one without."""

from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    **TINY_SIZES,
    "attention_bias": True,
    "intermediate_size": 48,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed, constants={"bias": 0.0, "sinks": 0.0, "": 1.0})
