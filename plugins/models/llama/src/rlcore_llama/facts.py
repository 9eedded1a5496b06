"""What `rlcore plan` must know of Llama, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts


def llama(config: Mapping[str, Any]) -> ModelFacts:
    """Llama 2 and 3, and Mistral."""
    return decoder_facts(config)
