"""What `rlcore plan` must know of Llama, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore.facts import Facts, decoder


def llama(config: Mapping[str, Any]) -> Facts:
    """Llama 2 and 3."""
    return decoder(config)
