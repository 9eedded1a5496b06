"""What `rlcore plan` must know of Qwen, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore.facts import Facts, decoder, experts_of


def qwen2(config: Mapping[str, Any]) -> Facts:
    """Qwen2 and Qwen2.5: queries, keys and values always have biases."""
    return decoder(config, qkv_bias=True)


def qwen3(config: Mapping[str, Any]) -> Facts:
    """Qwen3: queries and keys are normalized."""
    return decoder(config, qk_norm=True)


def qwen3_moe(config: Mapping[str, Any]) -> Facts:
    """Qwen3 with experts."""
    return decoder(config, qk_norm=True, experts=experts_of(config))
