"""Checks that need more than one setting: each says in one sentence what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.config.engines import engine_complaints
from rlcore.config.layers import Setting, flag_name
from rlcore.config.models import read_config
from rlcore.config.teacher import teacher_complaints
from rlcore.errors import ConfigError
from rlcore.inputs import Input
from rlcore.plugins.records import Kind
from rlcore.trains_on import TrainsOn

if TYPE_CHECKING:
    from rlcore.config.offers import Offers
    from rlcore.config.parts import BatchConfig, GroupConfig
    from rlcore.config.resolve import Inference, Resolved
    from rlcore.config.run import RunConfig
    from rlcore.spec import Part

TENSOR, PIPELINE = "tensor_model_parallel_size", "pipeline_model_parallel_size"
CONTEXT, EXPERT = "context_parallel_size", "expert_model_parallel_size"
BALANCE = "moe_router_load_balancing_type"
VIRTUAL = "virtual_pipeline_model_parallel_size"
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""What config.json calls the number of experts, by family."""
TOP_EXPERTS = "num_experts_per_tok"

_ON = ("true", "1", "yes", "on", "t", "y")


def fit(resolved: Resolved, settings: Mapping[str, Setting], offers: Offers) -> Resolved:
    """`resolved` with derived defaults filled in (ranks), after every check. Raises `ConfigError`.

    `offers`: what a refusal may suggest.
    """
    ranks = parallel_size(resolved.megatron)
    if "ranks" not in settings:
        run = resolved.run.model_copy(update={"ranks": ranks})
        resolved = replace(resolved, run=run)
    resolved = replace(resolved, run=resolved.run.model_copy(update=_absolute(resolved.run)))
    for sentence in _complaints(resolved, ranks, offers):
        raise ConfigError(sentence)
    if resolved.model.path is not None:
        check_model(resolved, read_config(resolved.model.path))
    return resolved


def _absolute(run: RunConfig) -> dict[str, str]:
    """Directories that a resumed run must find again, wherever it is resumed."""
    names = ("reference_model", "teacher_model", "critic_model", "weights", "engine_weights_dir")
    given = {name: getattr(run, name) for name in names}
    return {name: str(Path(path).resolve()) for name, path in given.items() if path}


def parallel_size(megatron: Mapping[str, Any]) -> int:
    """Ranks that hold one replica of the model, its experts included."""
    dense = _size(megatron, TENSOR) * _size(megatron, CONTEXT)
    return math.lcm(dense, _size(megatron, EXPERT)) * _size(megatron, PIPELINE)


def needed(resolved: Resolved) -> frozenset[Input]:
    """The inputs that the parts and the KL term of a run read."""
    run, found = resolved.run, frozenset[Input]()
    for _, part in _parts(resolved):
        found |= part.config.needs
    if run.kl_coef:
        found |= {Input.REFERENCE_LOG_PROBS}
        if run.kl_place == "reward":
            found |= {Input.OLD_LOG_PROBS}
    if run.distill_coef:
        found |= {Input.TEACHER_LOG_PROBS, Input.OLD_LOG_PROBS}
    return found


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


def _complaints(resolved: Resolved, parallel: int, offers: Offers) -> Iterator[str]:
    run = resolved.run
    longest = run.max_prompt_tokens + run.max_response_tokens
    yield from _given_complaints(resolved)
    siblings: list[tuple[str, Part[GroupConfig]]] = [*_parts(resolved)]
    siblings += [("reward", part) for part in resolved.rewards]
    siblings += [("filter", part) for part in resolved.filters]
    for kind, part in siblings:
        need = part.config.needed_group_size()
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
    if resolved.trains_on is TrainsOn.PAIRS and longest <= run.tokens_per_rank < 2 * longest:
        yield (
            f"--tokens-per-rank: found {run.tokens_per_rank}, expected at least {2 * longest}, which the "
            "longest pair takes (twice --max-prompt-tokens plus --max-response-tokens)."
        )
    yield from _asynchrony_complaints(run)
    if run.tokens_per_rank < longest:
        yield (
            f"--tokens-per-rank: found {run.tokens_per_rank}, expected at least {longest}, which the longest "
            "sample takes (--max-prompt-tokens plus --max-response-tokens)."
        )
    if run.ranks % parallel:
        yield (
            f"--ranks: found {run.ranks}, expected a multiple of {parallel}, the ranks that hold one model "
            "under megatron's parallel sizes."
        )
    yield from _role_complaints(resolved, offers)
    yield from eval_complaints(resolved)
    teachers = [
        f"{kind} {part.name!r}"
        for kind, part in _parts(resolved)
        if Input.TEACHER_LOG_PROBS in part.config.needs
    ]
    teachers += ["--distill-coef"] if run.distill_coef else []
    yield from teacher_complaints(run, teachers, resolved.loss.config.top_tokens, offers)
    yield from _correction_complaints(resolved)
    yield from _reward_complaints(resolved)
    yield from engine_complaints(run, kind=resolved.engine.name, sglang=resolved.sglang)


def _parts(resolved: Resolved) -> Iterator[tuple[str, Part[BatchConfig]]]:
    """Kind and part of everything that works on the train batch."""
    if resolved.advantage is not None:
        yield "advantage", resolved.advantage
    yield "loss", resolved.loss
    for part in resolved.corrections:
        yield "correction", part
    if resolved.value_loss is not None:
        yield "value_loss", resolved.value_loss


_OF_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "max_staleness", "max_refills", "max_attempts", "on_publish"),
    *("over_sample", "partial_rollouts", "mask_stale_tokens", "old_log_probs", "whiten_advantages"),
    *("kl_coef", "kl_place", "kl_unbiased", "distill_coef", "save_rollouts_every", "replay_routing"),
    "curriculum",
)
"""Settings of the run that mean something only where the policy samples what it is trained on."""


def _given_complaints(resolved: Resolved) -> Iterator[str]:
    """What doesn't go with where the responses come from."""
    run, on = resolved.run, resolved.trains_on
    for kind, part in _parts(resolved):
        if on not in part.config.trains_on:
            wanted = " or ".join(sorted(part.config.trains_on))
            yield (
                f"--{kind.replace('_', '-')}: found {part.name!r}, which trains on {wanted}, but --algo "
                f"{resolved.algorithm} trains on {on}; choose another one."
            )
    if on is TrainsOn.ROLLOUTS:
        return
    given = f"--algo {resolved.algorithm} trains on {on}"
    if run.group_size != on.per_prompt:
        yield f"--group-size: found {run.group_size}, but {given}, {on.per_prompt} to a prompt; leave it out."
    for name in _OF_SAMPLING:
        value, default = getattr(run, name), type(run).model_fields[name].default
        if value != default:
            yield f"{flag_name(name)}: found {_said(value)}, but {given} and samples none; leave it out."
    if on is TrainsOn.PAIRS and run.normalizer != "per_rollout":
        yield (
            f"--normalizer: found {run.normalizer}, but the loss of --algo {resolved.algorithm} is a mean "
            "over pairs; expected per_rollout."
        )


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _role_complaints(resolved: Resolved, offers: Offers) -> Iterator[str]:
    """The critic and the reference: there where something needs them, and only there."""
    run, needs = resolved.run, needed(resolved)
    readers = [
        f"{kind} {part.name!r}" for kind, part in _parts(resolved) if Input.VALUES in part.config.needs
    ]
    if readers and resolved.value_loss is None:
        found = f"--value-loss: found none, but {readers[0]} reads a critic's values"
        yield f"{found}{offers.parts(Kind.VALUE_LOSS)}."
    if resolved.value_loss is not None and not readers:
        found = f"--value-loss: found {resolved.value_loss.name!r}, but nothing reads a critic's values"
        ways = offers.parts_reading(Kind.ADVANTAGE, Input.VALUES, "--value-loss none")
        yield f"{found}{ways}."
    if not readers:
        reason = f"there is no critic{offers.recipes_with(Kind.VALUE_LOSS)}"
        yield from _unread(run, ("critic_model", "critic_warmup_steps"), reason)
        if run.critic_workers == "separate":
            yield f"--critic-workers: found separate, but {reason}."
    if Input.REFERENCE_LOG_PROBS not in needs:
        names = ("reference_model", "reference_refresh_every", "kl_unbiased")
        yield from _unread(run, names, "nothing reads the reference; add --kl-coef")
    if run.reference_placement == "swapped":
        yield from _swap_complaints(resolved, Input.REFERENCE_LOG_PROBS in needs)
    if run.kl_unbiased and run.kl_place != "loss":
        yield f"--kl-unbiased: found true with --kl-place {run.kl_place}, expected --kl-place loss."
    if run.critic_warmup_steps >= run.steps:
        found = f"--critic-warmup-steps: found {run.critic_warmup_steps}"
        yield f"{found}, expected less than --steps ({run.steps})."
    left = run.steps - run.critic_warmup_steps
    if run.critic_warmup_steps and left > 0 and run.warmup_steps >= left:
        yield (
            f"--warmup-steps: found {run.warmup_steps}, expected less than {left}, the --steps that are left "
            "after --critic-warmup-steps."
        )
    if readers and run.min_lr > run.critic_lr:
        yield f"--min-lr: found {run.min_lr:g}, expected at most --critic-lr ({run.critic_lr:g})."


def _asynchrony_complaints(run: RunConfig) -> Iterator[str]:
    """What keeps groups in progress, and what may become of their old tokens."""
    if not run.is_asynchronous:
        names = ("over_sample",) if run.over_sample > 1 else ()
        yield from _unread(
            run, (*names, "mask_stale_tokens"), "no rollout is partial; add --partial-rollouts"
        )
        return
    if run.mask_stale_tokens:
        return
    if not run.max_staleness:
        yield (
            "--partial-rollouts: found true with --max-staleness 0, but what is continued has tokens of "
            "older weights; expected --max-staleness 1 or more, or --mask-stale-tokens."
        )
    most = run.max_staleness + 1 if run.partial_rollouts else 1
    if run.over_sample > most:
        instead = "" if run.partial_rollouts else " --partial-rollouts, which lets generation rest, or"
        yield (
            f"--over-sample: found {run.over_sample:g}, expected at most {most}, because more groups would "
            f"grow too old for --max-staleness {run.max_staleness}; add{instead} --mask-stale-tokens."
        )


def _swap_complaints(resolved: Resolved, is_read: bool) -> Iterator[str]:
    found = "--reference-placement: found swapped"
    if not is_read:
        yield f"{found}, but nothing reads the reference; add --kl-coef."
    if str(resolved.megatron.get("overlap_param_gather", "false")).lower() == "true":
        yield f"{found} with --megatron.overlap-param-gather, which fills in weights late; expected resident."


def eval_complaints(chosen: Inference) -> Iterator[str]:
    """Evaluations that could not tell what they are asked."""
    for one in chosen.evals:
        config, at = one.config, f"--eval.{one.name}".replace("_", "-")
        if config.samples > 1 and config.temperature == 0:
            yield (
                f"{at}.samples: found {config.samples}, but at temperature 0 all answers to a prompt are the "
                f"same; add {at}.temperature."
            )
        if config.score_by == "reward" and not one.judged_by(chosen.rewards):
            yield f"{at}.score-by: found reward, but there is none; add {at}.reward NAME."


def _correction_complaints(resolved: Resolved) -> Iterator[str]:
    """A correction whose two policies are the same log-probs would do nothing."""
    run = resolved.run
    weighing = [part.name for part in resolved.corrections if part.config.weighs]
    if len(weighing) > 1:
        yield (
            f"--correction: found {weighing[0]!r} and {weighing[1]!r}, which weigh by the same ratio, so "
            "that it would count twice; expected one of them."
        )
    for part in resolved.corrections:
        compares = part.config.compares
        if compares == ("old", "rollout") and run.old_log_probs == "rollout":
            yield (
                f"--correction: found {part.name!r}, which compares the trainer's old log-probs with the "
                "engine's, but --old-log-probs rollout makes them the same; expected --old-log-probs trainer."
            )
        if compares == ("old", "new") and run.old_log_probs == "trainer" and run.minibatches == 1:
            yield (
                f"--correction: found {part.name!r}, which compares the old with the new log-probs, but they "
                "are the same with --minibatches 1; expected at least 2, or --old-log-probs rollout."
            )


def _reward_complaints(resolved: Resolved) -> Iterator[str]:
    """What an estimator and the filters make of rewards and advantages."""
    run, advantage = resolved.run, resolved.advantage
    lowering = [f"--filter {part.name}" for part in resolved.filters if part.config.lowers_rewards]
    if run.kl_coef and run.kl_place == "reward":
        lowering.append("--kl-place reward")
    if advantage is not None and advantage.config.from_zero and lowering:
        yield (
            f"--advantage: found {advantage.name!r}, which needs rewards of 0 or more, with {lowering[0]}, "
            "which lowers them; leave one out."
        )
    if advantage is not None and advantage.config.normalizes and run.whiten_advantages:
        yield (
            f"--whiten-advantages: found true, but the advantage {advantage.name!r} is normalized over the "
            "batch already; leave it out."
        )
    yield from _rank_complaints(resolved)
    for part in resolved.filters:
        if part.config.of_asynchrony and not run.is_asynchronous:
            yield f"--filter: found {part.name!r}, but no sample is stale; add --max-staleness."
    if not run.kl_coef:
        for name in ("kl_place", "kl_estimator"):
            if getattr(run, name) != type(run).model_fields[name].default:
                yield f"{flag_name(name)}: found {getattr(run, name)}, but there is no KL; add --kl-coef."


def _rank_complaints(resolved: Resolved) -> Iterator[str]:
    run, names = resolved.run, [part.name for part in resolved.rewards]
    for name in run.rank_reward:
        if name not in names:
            yield f"--rank-reward: found {name!r}, expected a reward of the run ({', '.join(names)})."
    if run.rank_reward and run.group_size < 2:
        yield f"--group-size: found {run.group_size}, but --rank-reward compares siblings; expected 2."
    if run.rank_reward and Input.GREEDY_REWARD in needed(resolved):
        yield (
            f"--rank-reward: found {run.rank_reward[0]!r}, but --algo {resolved.algorithm} compares scores "
            "with that of a greedy response, which has no siblings; leave it out."
        )


def _unread(run: RunConfig, names: tuple[str, ...], reason: str) -> Iterator[str]:
    for name in names:
        value = getattr(run, name)
        if value:
            yield f"{flag_name(name)}: found {_said(value)}, but {reason}."


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
