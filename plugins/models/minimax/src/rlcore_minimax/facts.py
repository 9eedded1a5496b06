"""What `rlcore plan` must know of MiniMax, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ModelFacts
from rlcore_toolkit import decoder_facts, expert_facts


def minimax_m2(config: Mapping[str, Any]) -> ModelFacts:
    """MiniMax-M2: one norm over all queries of a token, one over its keys, and experts in every layer."""
    experts = expert_facts(config, exact_router=True)
    return decoder_facts(config, qk_norm=True, joint_qk_norm=True, experts=experts)
