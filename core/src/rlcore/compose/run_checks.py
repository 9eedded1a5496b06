"""Checks of settings against each other. Each complaint is one sentence that says what to change.

They run in a fixed order and the first complaint ends the command, so a mistake with many consequences is
best caught by an early check.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlcore.api.columns import REPLAYS, TrainsOn
from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError
from rlcore.api.factory import load
from rlcore.api.marks import Mark
from rlcore.api.part import Part
from rlcore.api.part_config import TrainerConfig
from rlcore.api.records import Kind, ModelFamily
from rlcore.api.roles import BASE, START
from rlcore.api.run_config import RunConfig
from rlcore.compose import part_checks, role_checks
from rlcore.compose.abilities import missing, part_demands, setting_demands
from rlcore.compose.engine_groups import engine_groups, group_complaints as engine_group_complaints
from rlcore.compose.frozen import frozen_complaints, with_absolute_paths
from rlcore.compose.model_checks import check_model
from rlcore.compose.models import read_config
from rlcore.compose.overlay_checks import overlay_complaints
from rlcore.compose.resolved import Inference, ModelChoice, Resolved
from rlcore.compose.sentences import refuse, unread
from rlcore.config.fields import marked
from rlcore.config.layers import Setting
from rlcore.engines.engine import Engine
from rlcore.plugins.registry import Registry

URL = "expected a URL such as http://127.0.0.1:30000"


def checked(resolved: Resolved, settings: Mapping[str, Setting], registry: Registry) -> Resolved:
    """`resolved` with the defaults that depend on other settings filled in, after every check.

    Raises `ConfigError`. `registry`: of what a refusal may suggest.
    """
    run, trainer = resolved.run, resolved.trainer.config
    ranks = trainer.model_ranks(resolved.trainer_fields)
    if "ranks" not in settings:
        run = run.but(ranks=ranks)
    # Absolute, so that a resume finds them from any working directory.
    values, words = run.values(), ("", START, BASE)
    paths = {name: values[name] for name in marked(RunConfig, Mark.PATH) if values[name] not in words}
    paths = {name: str(Path(path).resolve()) for name, path in paths.items()}
    run = run.but(**paths, frozen=with_absolute_paths(run.serving.frozen))
    groups = engine_groups(run)
    if groups and "engines" not in settings:
        run = run.but(engines=sum(groups.values()))
    if run.debug.only == "rollout" and not run.checkpoints.save_rollouts_every:
        run = run.but(save_rollouts_every=1)
    resolved = replace(resolved, run=run)
    refuse(_complaints(resolved, settings, ranks, registry))
    config = config_of(resolved.model)
    if config is not None:
        check_model(resolved, config)
        for role in resolved.role_fields:
            # A role that names a model of its own is checked when that is read, before the run starts.
            if resolved.run.roles[role].model in words:
                check_model(resolved, config, role)
    return resolved


def with_steps_of(resolved: Resolved, prompts: int) -> Resolved:
    """The run with `--epochs` as steps: the fewest that draw each of its `prompts` prompts that often.

    Raises `ConfigError` where it is too short for its warm-ups.
    """
    run = resolved.run
    if not run.epochs:
        return resolved
    counted = run.but(steps=math.ceil(run.epochs * prompts / run.data.prompts_per_step))
    refuse(role_checks.schedule_complaints(counted))
    return replace(resolved, run=counted)


def config_of(model: ModelChoice) -> Mapping[str, Any] | None:
    """The values of its config.json; None: a preset of a family that does not tell them beforehand."""
    if model.path is not None:
        return read_config(model.path)
    if model.family.preset_config is None:
        return None
    told: Mapping[str, Any] = load(model.family.preset_config, model.family.name)
    return told


def _complaints(
    resolved: Resolved, settings: Mapping[str, Setting], parallel: int, registry: Registry
) -> Iterator[str]:
    run = resolved.run
    yield from part_checks.data_complaints(resolved)
    yield from part_checks.group_complaints(resolved)
    yield from _step_complaints(resolved)
    yield from _asynchrony_complaints(run)
    yield from _debug_complaints(resolved, registry)
    yield from _rank_complaints(run, parallel)
    yield from role_checks.role_complaints(resolved, settings, registry)
    yield from role_checks.role_table_complaints(resolved)
    yield from overlay_complaints(run)
    yield from role_checks.policy_complaints(resolved)
    yield from role_checks.role_rank_complaints(resolved)
    yield from eval_complaints(resolved, settings)
    yield from role_checks.distill_complaints(resolved, registry)
    yield from part_checks.advantage_complaints(resolved)
    yield from part_checks.correction_complaints(resolved)
    yield from part_checks.part_complaints(resolved)
    yield from part_checks.reward_complaints(resolved)
    yield from _router_complaints(resolved)
    table = resolved.engine.config.table
    yield from engine_complaints(run, [f"{table}.{name}" for name in resolved.engine_fields])
    if run.serving.engine_group:
        # Each group has its own fields, so the engine is asked about every group instead.
        yield from engine_group_complaints(resolved, counts_engines="engines" in settings)
    else:
        yield from resolved.engine.config.complaints(run, resolved.engine_fields)
    yield from bridge_complaints(resolved.model.family, resolved.trainer)
    yield from missing(resolved.trainer, [*part_demands(resolved), *setting_demands(run)])
    yield from resolved.trainer.config.complaints(run, resolved.trainer_fields, resolved.roles)
    yield from frozen_complaints(resolved)
    if run.sleep != "none":
        yield from _sleep_complaints(resolved)


def _longest(run: RunConfig) -> int:
    """Tokens of the longest sample."""
    return run.sampling.max_prompt_tokens + run.sampling.max_response_tokens


def _step_complaints(resolved: Resolved) -> Iterator[str]:
    """How a step is divided, and the learning rate over the steps."""
    run, longest = resolved.run, _longest(resolved.run)
    found, most = run.optimizer.minibatches, run.data.prompts_per_step
    if found > most:
        yield f"--minibatches: found {found}, expected at most --prompts-per-step ({most})."
    if run.optimizer.min_lr > run.optimizer.lr:
        yield f"--min-lr: found {run.optimizer.min_lr:g}, expected at most --lr ({run.optimizer.lr:g})."
    if not run.epochs:
        yield from role_checks.schedule_complaints(run)
    # A pair is never split, so one micro-batch must hold both responses.
    if resolved.trains_on is TrainsOn.PAIRS and longest <= run.optimizer.tokens_per_rank < 2 * longest:
        yield (
            f"--tokens-per-rank: found {run.optimizer.tokens_per_rank}, expected at least {2 * longest}, "
            "which the longest pair takes (twice --max-prompt-tokens plus --max-response-tokens)."
        )


def _rank_complaints(run: RunConfig, parallel: int) -> Iterator[str]:
    """A sample must fit a rank, and a whole number of models the ranks."""
    longest = _longest(run)
    if run.optimizer.tokens_per_rank < longest:
        yield (
            f"--tokens-per-rank: found {run.optimizer.tokens_per_rank}, expected at least {longest}, which "
            "the longest sample takes (--max-prompt-tokens plus --max-response-tokens)."
        )
    if run.ranks % parallel:
        yield (
            f"--ranks: found {run.ranks}, expected a multiple of {parallel}, the ranks that hold one model "
            "under the trainer's parallel sizes."
        )


def _debug_complaints(resolved: Resolved, registry: Registry) -> Iterator[str]:
    """Settings that do not suit half of a run."""
    only = resolved.run.debug.only
    found = f"--only: found {only}, but the producer {resolved.producer.name!r} generates"
    if only == "train" and resolved.samples:
        parts = registry.configs(Kind.PRODUCER)
        read = [repr(part.record.name) for part, config in parts if getattr(config, "makes_batches", False)]
        such = f", such as {' or '.join(read)}" if read else ""
        yield f"{found} rollouts; choose a --producer that reads saved ones{such}."
    if only == "rollout":
        if not resolved.samples:
            yield f"{found} nothing; leave it out."
        settings = marked(RunConfig, Mark.TRAINING)
        yield from unread(resolved.run, settings, "--only rollout trains nothing")
        for name in resolved.run.policies:
            yield f"--policy.{name}: found a further policy, but --only rollout trains nothing; leave it out."


def bridge_complaints(family: ModelFamily, trainer: Part[TrainerConfig]) -> Iterator[str]:
    """A model whose bridge is another trainer's."""
    if trainer.config.needs_bridge and family.trainer != trainer.name:
        found = f"the bridge of {family.name!r} is written for the trainer {family.trainer!r}"
        found = "its architecture has no bridge" if "*" in family.architectures else found
        yield (
            f"--model: {found}, but the trainer {trainer.name!r} needs one of its own (`rlcore plugins` "
            f"lists families); expected --trainer {family.trainer}, or a bridge (`rlcore new model`)."
        )


def _sleep_complaints(resolved: Resolved) -> Iterator[str]:
    """A trainer sleeps to make room for engines on its own devices; elsewhere `--sleep` has no effect."""
    run, found = resolved.run, f"--sleep: found {resolved.run.sleep}"
    if run.debug.only or resolved.producer.config.makes_batches:
        half = f"--only {run.debug.only}" if run.debug.only else f"--producer {resolved.producer.name}"
        yield f"{found} with {half}, where nobody shares the devices; leave it out."
    if run.placement == "split" or run.serving.engine_url:
        other = "--engine-url" if run.serving.engine_url else "--placement split"
        yield f"{found} with {other}, where engines have devices of their own; leave it out."
    if not run.asynchrony.rests:
        yield (
            f"{found} with --max-staleness {run.asynchrony.max_staleness}, where trainer and engines work at "
            "the same time; add --partial-rollouts, or leave it out."
        )


def _asynchrony_complaints(run: RunConfig) -> Iterator[str]:
    """Settings of asynchronous runs: that there is one, and that its groups do not grow too old to be
    used.
    """
    asynchrony = run.asynchrony
    if not asynchrony.is_asynchronous:
        partial = ("over_sample", "mask_stale_tokens")
        yield from unread(run, partial, "no rollout is partial; add --partial-rollouts")
        idle = "no request is in flight when the weights of a synchronous run change; add --max-staleness"
        yield from unread(run, ("on_publish",), idle)
        return
    if asynchrony.mask_stale_tokens:  # a token that is too old is masked: no group is lost by its age
        return
    if not asynchrony.max_staleness:
        yield (
            "--partial-rollouts: found true with --max-staleness 0, but what is continued has tokens of "
            "older weights; expected --max-staleness 1 or more, or --mask-stale-tokens."
        )
    # With k times as many groups as a step takes, the last ones wait k - 1 steps for their turn.
    most = asynchrony.max_staleness + 1 if asynchrony.partial_rollouts else 1
    if asynchrony.over_sample > most:
        instead = "" if asynchrony.partial_rollouts else " --partial-rollouts, which lets generation rest, or"
        yield (
            f"--over-sample: found {asynchrony.over_sample:g}, expected at most {most}, because more groups "
            f"would grow too old for --max-staleness {asynchrony.max_staleness}; add{instead} "
            "--mask-stale-tokens."
        )


def eval_complaints(chosen: Inference, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Evaluations whose settings contradict each other, and what their generators object to."""
    yield from part_checks.complaints_of(
        [evaluation.generator for evaluation in chosen.evals if evaluation.generator], chosen.run
    )
    for evaluation in chosen.evals:
        config, at = evaluation.config, flag_name(f"eval.{evaluation.name}")
        if config.samples > 1 and config.temperature == 0:
            samples = settings[f"eval.{evaluation.name}.samples"].layer.at(f"eval.{evaluation.name}.samples")
            more = "--temperature" if samples == "--samples" else f"{at}.temperature"
            yield (
                f"{samples}: found {config.samples}, but at temperature 0 all answers to a prompt are the "
                f"same; add {more}."
            )
        if config.score_by == "reward" and not evaluation.judged_by(chosen.rewards):
            yield f"{at}.score-by: found reward, but there is none; add {at}.reward NAME."


def _router_complaints(chosen: Inference) -> Iterator[str]:
    policy, engine = chosen.run.serving.router, chosen.engine
    policies = engine.config.routers
    if policy is None or policy in policies:
        return
    if not policies:
        yield f"--router: found {policy}, but --engine {engine.name} has no router; leave it out."
    else:
        yield f"--router: found {policy!r}, expected one of {', '.join(policies)}."


def engine_complaints(run: RunConfig, passed: Sequence[str]) -> Iterator[str]:
    """Settings of engines that the run does not start, or does not have.

    `passed`: given fields of their table.
    """
    if run.serving.engine_url:
        yield from _external_complaints(run)
        if passed:
            first = flag_name(passed[0])
            yield f"{first} has no effect on the servers of --engine-url; give it where they are started."
        if run.evaluation.eval_engines:
            yield (
                f"--eval-engines: found {run.evaluation.eval_engines}, but the servers of --engine-url are "
                "not started here; leave it out."
            )
    elif run.serving.engine_weights_dir:
        yield "--engine-weights-dir is for the servers of --engine-url, and none is given; leave it out."
    for name in REPLAYS:
        if run.serving.router and getattr(run.loss, name):
            yield f"{flag_name(name)}: found true, but a router asks no engine what it chose; drop --router."


def engine_count(engine: Engine, run: RunConfig, fields: Mapping[str, Any], *, gpu: bool = True) -> int:
    """How many engines with `fields` the run starts: `--engines`; else as many as share its workers' GPUs."""
    gpus = engine.devices(fields) if gpu and run.debug.only != "rollout" else 0
    default = max(1, run.ranks // gpus) if gpus and run.placement == "colocate" else 1
    return run.serving.engines or default


def check_engine_placement(
    engine: Engine, run: RunConfig, count: int, fields: Mapping[str, Any], hf_config: Mapping[str, Any] | None
) -> None:
    """`ConfigError` if the GPUs of `count` engines with `fields` are not those of the run's train workers, or
    cannot divide the model of `hf_config` (None: it is not known yet).

    It asks for no machine: whoever calls knows that the run is one on GPUs. Engines on GPUs of their own are
    asked for the model alone, and engines on the CPU for nothing.
    """
    gpus, ranks = engine.devices(fields), run.ranks
    if count * gpus and hf_config is not None:
        engine.check_layout(fields, hf_config)
    if not count * gpus or run.placement == "split" or run.debug.only == "rollout":
        return
    or_cpu = f", or {engine.stays_on_cpu}" if engine.stays_on_cpu else ""
    if run.evaluation.eval_engines:
        raise ConfigError(
            f"--eval-engines: found {run.evaluation.eval_engines} with --placement colocate, but engines "
            f"that work beside the trainer need GPUs of their own; use --placement split{or_cpu}."
        )
    shared = "--placement colocate puts engines on the GPUs of the train workers:"
    if count * gpus > ranks:
        raise ConfigError(
            f"{shared} --engines {count} of {gpus} GPUs each take {count * gpus}, and --ranks {ranks} has "
            f"{ranks}; use fewer engines, or --placement split{or_cpu}."
        )
    if ranks % gpus:
        raise ConfigError(
            f"{shared} engines of {gpus} GPUs do not divide --ranks {ranks}; use a multiple of {gpus}, or "
            "--placement split."
        )


def _external_complaints(run: RunConfig) -> Iterator[str]:
    for url in run.serving.engine_url:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            yield f"--engine-url: found {url!r}, {URL}."
        if parts.username or parts.password:
            yield "--engine-url: found a user or password in it; set RLCORE_ENGINE_TOKEN instead."
    if len(set(run.serving.engine_url)) < len(run.serving.engine_url):
        yield f"--engine-url: found {', '.join(run.serving.engine_url)}; expected each server once."
    if run.serving.engines not in (None, len(run.serving.engine_url)):
        named = len(run.serving.engine_url)
        yield f"--engines: found {run.serving.engines}, but --engine-url names {named}; leave --engines out."
