"""What `rlcore plan` must know of gpt-oss, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts, expert_facts


def gpt_oss(config: Mapping[str, Any]) -> ModelFacts:
    """gpt-oss: biases everywhere, and a sink a head."""
    experts = expert_facts(config, biased=True, joint=True)
    return decoder_facts(config, qkv_bias=True, output_bias=True, sinks=True, experts=experts)
