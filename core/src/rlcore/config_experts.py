"""The experts of a model, read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXPERT_FIELDS = ("num_experts", "n_routed_experts", "num_local_experts")
"""The names that config.json has for the number of experts, by family."""


def expert_count(config: Mapping[str, Any]) -> int:
    """The experts of a layer of the model; 0 for a dense one."""
    return next((config[name] for name in EXPERT_FIELDS if isinstance(config.get(name), int)), 0)


def expert_width(config: Mapping[str, Any]) -> int:
    """The inner size of an expert: that of every MLP where config.json has no name of its own for it."""
    return int(config.get("moe_intermediate_size") or config.get("intermediate_size") or 0)
