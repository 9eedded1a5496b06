"""What `rlcore plan` must know of Qwen, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts, expert_facts


def qwen2(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen2 and Qwen2.5: queries, keys and values always have biases."""
    return decoder_facts(config, qkv_bias=True)


def qwen3(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3: queries and keys are normalized."""
    return decoder_facts(config, qk_norm=True)


def qwen3_moe(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3 with experts."""
    return decoder_facts(config, qk_norm=True, experts=expert_facts(config))
