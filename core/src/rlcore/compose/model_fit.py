"""Checks against the model's config.json: layouts that divide it, contexts that it has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.compose.resolved import Inference, Resolved
from rlcore.config.layers import flag_name
from rlcore.errors import ConfigError

TENSOR, PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_model_parallel_size"
BALANCE = "moe_router_load_balancing_type"
VIRTUAL = "virtual_pipeline_model_parallel_size"
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""What config.json calls the number of experts, by family."""
TOP_EXPERTS = "num_experts_per_tok"

_ON = ("true", "1", "yes", "on", "t", "y")


def parallel_size(megatron: Mapping[str, Any]) -> int:
    """Ranks that hold one replica of the model, its experts included."""
    dense = _size(megatron, TENSOR) * _size(megatron, CONTEXT)
    return math.lcm(dense, _size(megatron, EXPERT)) * _size(megatron, PIPELINE)


def check_model(resolved: Resolved, config: Mapping[str, Any]) -> None:
    """Checks against the model's config.json (of a preset: call it once the preset is written)."""
    for sentence in _model_complaints(resolved, config):
        raise ConfigError(sentence)


def check_context(chosen: Inference, config: Mapping[str, Any]) -> None:
    """The check of `check_model` that concerns generation alone."""
    for sentence in _context_complaints(chosen, config):
        raise ConfigError(sentence)


def _size(megatron: Mapping[str, Any], name: str) -> int:
    value = megatron.get(name, 1)
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        flag = flag_name(f"megatron.{name}")
        raise ConfigError(f"{flag}: found {value!r}, expected an integer of at least 1.")
    return int(value)


def _context_complaints(chosen: Inference, config: Mapping[str, Any]) -> Iterator[str]:
    run = chosen.run
    context = config.get("max_position_embeddings")
    longest = run.max_prompt_tokens + run.max_response_tokens
    if isinstance(context, int) and longest > context:
        yield (
            f"--max-prompt-tokens plus --max-response-tokens: found {longest}, expected at most {context}, "
            f"the context of model {chosen.model.name!r}."
        )
    if isinstance(context, int) and longest <= context < chosen.context_length:
        yield (
            f"--max-prompt-tokens plus the largest --eval.NAME.max-tokens: found {chosen.context_length}, "
            f"expected at most {context}, the context of model {chosen.model.name!r}."
        )


def _model_complaints(resolved: Resolved, config: Mapping[str, Any]) -> Iterator[str]:
    yield from _context_complaints(resolved, config)
    quantization = config.get("quantization_config")
    if quantization:
        yield (
            f"--model: found weights quantized by {quantization.get('quant_method')!r}, expected full ones, "
            "which an engine can take updates of; rlcore convert makes them of FP8 weights."
        )
    vocabulary, top = config.get("vocab_size"), resolved.loss.config.top_tokens
    if top is not None and isinstance(vocabulary, int) and top.count > vocabulary:
        yield (
            f"loss {resolved.loss.name!r}: found {top.count} tokens to compare in each position, expected at "
            f"most {vocabulary}, the vocabulary of model {resolved.model.name!r}."
        )
    divided: Mapping[str, tuple[str, ...]] = {
        TENSOR: ("num_attention_heads", "num_key_value_heads", "intermediate_size"),
        PIPELINE: ("num_hidden_layers",),
    }
    for size, names in divided.items():
        parts = _size(resolved.megatron, size)
        for name in names:
            count = config.get(name)
            if isinstance(count, int) and count % parts:
                yield (
                    f"{flag_name(f'megatron.{size}')}: found {parts}, expected a divisor of the model's "
                    f"{name} ({count})."
                )
    yield from _virtual_complaints(resolved, config.get("num_hidden_layers"))
    yield from _expert_complaints(resolved, config)


def _virtual_complaints(resolved: Resolved, layers: Any) -> Iterator[str]:
    if VIRTUAL not in resolved.megatron or not isinstance(layers, int):
        return
    stages, chunks = _size(resolved.megatron, PIPELINE), _size(resolved.megatron, VIRTUAL)
    if layers % (stages * chunks):
        yield (
            f"{flag_name(f'megatron.{VIRTUAL}')}: found {chunks}, expected that times {PIPELINE} ({stages}) "
            f"it divides the model's num_hidden_layers ({layers})."
        )


def _expert_complaints(resolved: Resolved, config: Mapping[str, Any]) -> Iterator[str]:
    """A model with experts is divided differently; a dense one has none to divide."""
    megatron = resolved.megatron
    experts = next((config[name] for name in EXPERTS if isinstance(config.get(name), int)), 0)
    if resolved.run.replay_routing and not (experts and config.get(TOP_EXPERTS)):
        yield "--replay-routing: found true, but the model has no experts; leave it out."
    parts, tensor = _size(megatron, EXPERT), _size(megatron, TENSOR)
    found = f"{flag_name(f'megatron.{TENSOR}')}: found {tensor}"
    if not experts:
        if BALANCE in megatron:
            yield f"{flag_name(f'megatron.{BALANCE}')}: the model has no experts; leave it out."
        if parts > 1:
            flag = flag_name(f"megatron.{EXPERT}")
            yield f"{flag}: found {parts}, but the model has no experts; leave it out."
        return
    if experts % parts:
        flag = flag_name(f"megatron.{EXPERT}")
        yield f"{flag}: found {parts}, expected a divisor of the model's experts ({experts})."
    shared = (config.get("n_shared_experts") or 0) * (config.get("moe_intermediate_size") or 0)
    if shared % tensor:
        yield f"{found}, expected a divisor of the size of the model's shared experts ({shared})."
    if tensor > 1 and str(megatron.get("sequence_parallel", False)).lower() not in _ON:
        needed = flag_name("megatron.sequence_parallel")
        yield f"{found} for a model with experts, which needs {needed} true as well."
