"""What `rlcore plan` must know of Gemma, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts


def gemma3(config: Mapping[str, Any]) -> ModelFacts:
    """Gemma 3: norms of queries and keys, and before and after each block."""
    return decoder_facts(config, qk_norm=True, sandwich=True, zero_centered=True, gelu=True)
