"""The experts of a model, read from its config.json."""

from collections.abc import Mapping
from typing import Any

EXPERT_FIELDS = ("num_experts", "n_routed_experts", "num_local_experts")
"""The names that config.json has for the number of experts, by family."""


def expert_count(config: Mapping[str, Any]) -> int:
    """The experts of a layer of the model; 0 for a dense one."""
    return next((config[name] for name in EXPERT_FIELDS if isinstance(config.get(name), int)), 0)
