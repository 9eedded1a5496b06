"""Checks that need more than one setting: each says in one sentence what to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlcore.config.layers import Setting, flag_name
from rlcore.config.models import read_config
from rlcore.errors import ConfigError

if TYPE_CHECKING:
    from rlcore.config.resolve import Resolved

TENSOR, PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
CONTEXT = "context_parallel_size"

_UNEVEN = ("num_layers_in_", "pipeline_model_parallel_layout", "account_for_")
"""Fields of megatron that divide the layers in their own way."""


def fit(resolved: Resolved, settings: Mapping[str, Setting]) -> Resolved:
    """`resolved` with derived defaults filled in (ranks), after every check. Raises `ConfigError`."""
    ranks = parallel_size(resolved.megatron)
    if "ranks" not in settings:
        run = resolved.run.model_copy(update={"ranks": ranks})
        resolved = replace(resolved, run=run)
    for sentence in _complaints(resolved, ranks):
        raise ConfigError(sentence)
    if resolved.model.path is not None:
        check_model(resolved, read_config(resolved.model.path))
    return resolved


def parallel_size(megatron: Mapping[str, Any]) -> int:
    """Ranks that hold one replica of the model."""
    return _size(megatron, TENSOR) * _size(megatron, PIPELINE) * _size(megatron, CONTEXT)


def check_model(resolved: Resolved, config: Mapping[str, Any]) -> None:
    """Checks against the model's config.json (of a preset: call it once the preset is written)."""
    for sentence in _model_complaints(resolved, config):
        raise ConfigError(sentence)


def _size(megatron: Mapping[str, Any], name: str) -> int:
    value = megatron.get(name, 1)
    if isinstance(value, bool) or not str(value).isdecimal() or int(value) < 1:
        flag = flag_name(f"megatron.{name}")
        raise ConfigError(f"{flag}: found {value!r}, expected an integer of at least 1.")
    return int(value)


def _complaints(resolved: Resolved, parallel: int) -> Iterator[str]:
    run = resolved.run
    longest = run.max_prompt_tokens + run.max_response_tokens
    for kind in ("advantage", "loss"):
        part = getattr(resolved, kind)
        need = part.config.min_group_size
        if run.group_size < need:
            yield (
                f"--group-size: found {run.group_size}, but {kind} {part.name!r} compares the samples of a "
                f"prompt; expected at least {need}."
            )
    if run.minibatches > run.prompts_per_step:
        yield (
            f"--minibatches: found {run.minibatches}, expected at most --prompts-per-step "
            f"({run.prompts_per_step})."
        )
    if run.min_lr > run.lr:
        yield f"--min-lr: found {run.min_lr:g}, expected at most --lr ({run.lr:g})."
    if run.warmup_steps and run.warmup_steps >= run.steps:
        yield f"--warmup-steps: found {run.warmup_steps}, expected less than --steps ({run.steps})."
    if run.max_staleness:
        yield f"--max-staleness: found {run.max_staleness}, expected 0: runs are synchronous so far."
    if run.tokens_per_rank < longest:
        yield (
            f"--tokens-per-rank: found {run.tokens_per_rank}, expected at least {longest}, which the longest "
            "sample takes (--max-prompt-tokens plus --max-response-tokens)."
        )
    if run.ranks % parallel:
        yield (
            f"--ranks: found {run.ranks}, expected a multiple of {parallel}, the product of megatron's "
            "tensor, pipeline and context parallel sizes."
        )
    if resolved.sglang and resolved.engine.name != "sglang":
        first = flag_name(f"sglang.{next(iter(resolved.sglang))}")
        yield f"{first} needs --engine sglang, but the engine is {resolved.engine.name!r}."


def _model_complaints(resolved: Resolved, config: Mapping[str, Any]) -> Iterator[str]:
    run = resolved.run
    context = config.get("max_position_embeddings")
    longest = run.max_prompt_tokens + run.max_response_tokens
    if isinstance(context, int) and longest > context:
        yield (
            f"--max-prompt-tokens plus --max-response-tokens: found {longest}, expected at most {context}, "
            f"the context of model {resolved.model.name!r}."
        )
    divided: list[tuple[str, tuple[str, ...]]] = [(TENSOR, ("num_attention_heads", "num_key_value_heads"))]
    if not any(name.startswith(_UNEVEN) for name in resolved.megatron):
        divided.append((PIPELINE, ("num_hidden_layers",)))
    for size, names in divided:
        parts = _size(resolved.megatron, size)
        for name in names:
            count = config.get(name)
            if isinstance(count, int) and count % parts:
                yield (
                    f"{flag_name(f'megatron.{size}')}: found {parts}, expected a divisor of the model's "
                    f"{name} ({count})."
                )
