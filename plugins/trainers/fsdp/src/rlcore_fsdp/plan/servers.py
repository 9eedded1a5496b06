"""What engines on the trainer's GPUs need."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlcore_toolkit import RunFile


@dataclass(frozen=True, kw_only=True)
class Engines:
    """`count` engines of `gpus` GPUs each, asked for `sequences` of up to `tokens` at once.

    Bytes on each GPU: `weights`, and `cache` of a token. `share`: of the GPU's memory that an engine takes;
    None: what is left.
    """

    count: int
    gpus: int
    sequences: int
    tokens: int
    weights: int
    cache: int
    share: float | None


def engines_of(
    file: RunFile, config: Mapping[str, Any], weights: int, *, count: int, gpus: int, share: float | None
) -> Engines:
    """Engines that hold `weights` bytes together, and have a request of the run each."""
    values = file.value("prompts_per_step") * file.value("group_size") * max(1.0, file.value("over_sample"))
    most = file.value("engine_concurrency")
    heads = key_value_heads(config)
    return Engines(
        count=count,
        gpus=gpus,
        sequences=max(1, min(math.ceil(values / count), most)),
        tokens=file.longest,
        weights=-(-weights // gpus),
        cache=cache_bytes(config, str(file.value("dtype"))) // min(gpus, heads),
        share=share,
    )


def cache_bytes(config: Mapping[str, Any], dtype: str) -> int:
    """Bytes of a token in an engine's cache: of latent attention its compressed form, else keys and values.

    Of hybrid models, whose other layers keep a state of one size, the layers with attention count.
    """
    text = config.get("text_config") or config
    kinds = text.get("layer_types") or text.get("layers_block_type") or ["attention"] * layers_of(config)
    layers = sum("attention" in kind and "linear" not in kind for kind in kinds)
    size = 4 if dtype == "fp32" else 2
    if latent := text.get("kv_lora_rank"):
        return int(layers * (latent + text.get("qk_rope_head_dim", 0)) * size)
    heads = text.get("num_attention_heads") or 1
    head = text.get("head_dim") or text.get("hidden_size", 0) // heads
    return int(layers * 2 * key_value_heads(config) * head * size)


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Parts into which tensor-parallel ranks can divide a cache."""
    text = config.get("text_config") or config
    if text.get("kv_lora_rank"):
        return 1
    return int(text.get("num_key_value_heads") or text.get("num_attention_heads") or 1)


def layers_of(config: Mapping[str, Any]) -> int:
    """Blocks of the decoder."""
    text = config.get("text_config") or config
    return int(text.get("num_hidden_layers") or text.get("n_layer") or 1)
