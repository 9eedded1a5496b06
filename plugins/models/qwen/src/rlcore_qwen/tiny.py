"""The tiny random Qwen3 that `--model qwen3` trains on a laptop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlcore_toolkit import TINY_SIZES, write_tiny_model

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    **TINY_SIZES,
    "use_sliding_window": False,
}


def tiny(directory: str | Path, seed: int = 0) -> Path:
    """Write the model's Hugging Face directory; returns it. The same seed gives the same bytes."""
    return write_tiny_model(directory, CONFIG, seed, _shapes())


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    yield "model.embed_tokens.weight", (CONFIG["vocab_size"], hidden)
    for number in range(CONFIG["num_hidden_layers"]):
        for name, shape in layer.items():
            yield f"model.layers.{number}.{name}.weight", shape
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (CONFIG["vocab_size"], hidden)
