"""What `rlcore plan` must know of DeepSeek, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts, expert_facts, latent_facts


def deepseek_v3(config: Mapping[str, Any]) -> ModelFacts:
    """DeepSeek-V3, V3.1, R1 and V3.2: latent attention and experts."""
    return decoder_facts(config, latent=latent_facts(config), experts=expert_facts(config, exact_router=True))
