"""Checks against the model's config.json: its context, its vocabulary, its weights, and the trainer's
layout.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.sentences import refuse
from rlcore.weights.experts_config import expert_count
from rlcore.weights.fp8_config import fp8_block

NO_INDEXER = "the model has no indexer"


def check_model(resolved: Resolved, config: Mapping[str, Any], role: str = "") -> None:
    """`ConfigError` where the run does not suit the model of `config`, its config.json.

    `role`: whose model it is; empty: the policy's.
    """
    for sentence in _model_complaints(resolved, config, role):
        raise ConfigError(f"Of the {role}: {sentence}" if role in resolved.role_fields else sentence)


def check_context(chosen: Inference, config: Mapping[str, Any]) -> None:
    """The one check of `check_model` that an evaluation without a trainer needs."""
    refuse(_context_complaints(chosen, config))


def _longest(chosen: Inference) -> int:
    """Tokens of the longest prompt with its response."""
    return chosen.run.sampling.max_prompt_tokens + chosen.run.sampling.max_response_tokens


def _context_complaints(chosen: Inference, config: Mapping[str, Any]) -> Iterator[str]:
    context, longest = config.get("max_position_embeddings"), _longest(chosen)
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


def _model_complaints(resolved: Resolved, config: Mapping[str, Any], role: str) -> Iterator[str]:
    yield from _context_complaints(resolved, config)
    quantization = config.get("quantization_config")
    if quantization and fp8_block(quantization) is None:
        yield (
            f"--model: found weights quantized by {quantization.get('quant_method')!r}, expected FP8 (e4m3) "
            "with a weight_block_size, or full ones, which rlcore convert makes of MXFP4 and INT4."
        )
    vocabulary, top = config.get("vocab_size"), resolved.loss.config.top_tokens
    if top is not None and isinstance(vocabulary, int) and top.count > vocabulary:
        yield (
            f"loss {resolved.loss.name!r}: found {top.count} tokens to compare in each position, expected at "
            f"most {vocabulary}, the vocabulary of model {resolved.model.name!r}."
        )
    if resolved.run.loss.replay_routing and not (expert_count(config) and config.get("num_experts_per_tok")):
        yield "--replay-routing: found true, but the model has no experts; leave it out."
    longest, keys = _longest(resolved), config.get("index_topk") or 0
    if resolved.run.loss.replay_indexer and not 0 < keys < longest:
        reason = f"each of {longest} tokens sees all before it (index_topk is {keys})" if keys else NO_INDEXER
        yield f"--replay-indexer: found true, but {reason}; leave it out."
    yield from resolved.trainer.config.model_complaints(resolved.run, resolved.fields_of(role), config)
