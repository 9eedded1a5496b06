"""What `rlcore plan` must know of Qwen, from the values of a config.json."""

from collections.abc import Mapping
from typing import Any

from rlcore import ExpertFacts, ModelFacts
from rlcore_toolkit import decoder_facts, delta_facts, expert_facts


def qwen2(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen2 and Qwen2.5: queries, keys and values always have biases."""
    return decoder_facts(config, qkv_bias=True)


def qwen3(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3: queries and keys are normalized."""
    return decoder_facts(config, qk_norm=True)


def qwen3_moe(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3 with experts."""
    return decoder_facts(config, qk_norm=True, experts=expert_facts(config))


def qwen3_5(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3.5, dense: gated delta nets, every few layers a gated attention."""
    return _with_delta_nets(config, None)


def qwen3_next(config: Mapping[str, Any]) -> ModelFacts:
    """Qwen3-Next, and Qwen3.5 with experts: the same with experts in every layer."""
    # of Qwen3.5 no layer is dense, so it has no size of one
    return _with_delta_nets({"intermediate_size": 0, **config}, expert_facts(config))


def _with_delta_nets(config: Mapping[str, Any], experts: ExpertFacts | None) -> ModelFacts:
    delta = delta_facts(config)
    return decoder_facts(
        config, qk_norm=True, zero_centered=True, output_gate=True, delta=delta, experts=experts
    )
