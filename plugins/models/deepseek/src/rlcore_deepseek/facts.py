"""What `rlcore plan` must know of DeepSeek, from the values of a config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlcore import ModelFacts
from rlcore_deepseek.adopt import renamed
from rlcore_toolkit import decoder_facts, delta_facts, expert_facts, latent_facts


def deepseek_v3(config: Mapping[str, Any]) -> ModelFacts:
    """DeepSeek-V3, V3.1, R1 and V3.2: latent attention and experts."""
    return decoder_facts(config, latent=latent_facts(config), experts=expert_facts(config, exact_router=True))


def kimi_linear(config: Mapping[str, Any]) -> ModelFacts:
    """Kimi-Linear: Kimi Delta Attention, every few layers latent attention, and experts."""
    linear = config.get("linear_attn_config") or {}
    heads = linear.get("num_heads") or config["linear_num_heads"]
    size = linear.get("head_dim") or config["linear_head_dim"]
    kinds = config.get("layer_types") or [
        "full_attention" if number in linear["full_attn_layers"] else "linear_attention"
        for number in range(1, config["num_hidden_layers"] + 1)
    ]
    fields = {
        **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), heads),
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), size),
        "linear_conv_kernel_dim": linear.get("short_conv_kernel_size")
        or config.get("linear_conv_kernel_dim", 4),
        "layer_types": kinds,
    }
    dense = config.get("mlp_layer_types") or ["dense"] * config.get("first_k_dense_replace", 1)
    experts = expert_facts({**config, **renamed(config)}, exact_router=True)
    return decoder_facts(
        config,
        latent=latent_facts(config),
        experts=replace(experts, first_dense=dense.count("dense")),
        delta=replace(delta_facts({**config, **fields}), rank=size),
    )
