"""Checks a run before any process starts, and collects what it needs."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from rlcore.api.columns import TrainsOn
from rlcore.api.errors import ConfigError, DataError, ModelError
from rlcore.api.factory import load
from rlcore.api.model_facts import ModelFacts
from rlcore.api.part import ModelSpec, built
from rlcore.api.roles import policy_role
from rlcore.api.run_config import RunConfig
from rlcore.api.sources import DrawingSource, Prompts
from rlcore.api.trainer import ConvertingTrainer, Trainer
from rlcore.api.types import Prompt
from rlcore.checkpoint.disk import writing
from rlcore.compose.engine_groups import engine_groups, group_fields
from rlcore.compose.model_checks import check_context, check_model
from rlcore.compose.models import read_config
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.run_checks import with_steps_of
from rlcore.compose.sentences import refuse, unread
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.plugins.factories import check_factory
from rlcore.preparation import data_checks
from rlcore.preparation.engine_checks import check_external, check_placement, check_router, checked_engine
from rlcore.preparation.eval_sets import PreparedEval, asked_for, held_out, prompts_of
from rlcore.preparation.prepared import Prepared, Served
from rlcore.preparation.role_models import check_same, prepare_frozen, role_specs
from rlcore.preparation.run_folder import MODEL_DIR
from rlcore.rollout.generators import Generators, check_policies
from rlcore.rollout.scoring import check_scored, check_vocabulary
from rlcore.weights.weights_check import check_weights


def prepare(resolved: Resolved, run_dir: Path, resume_from: Path | None) -> Prepared:
    """Check what the user gave against the model, the data and the parts; `UserError` where it doesn't fit.

    Writes nothing but the preset's model into `run_dir`.
    """
    # Cheap checks come first: the weights and the prompts are read once the settings are known to fit.
    _load_parts(resolved)
    gpu = torch.cuda.is_available()
    trainer: Trainer = resolved.trainer.build()
    fields = trainer.fields(resolved.run, resolved.trainer_fields, gpu=gpu)
    engine_fields = {} if resolved.run.serving.engine_url else checked_engine(resolved)
    check_router(resolved)
    check_placement(resolved, gpu)
    path = model_path(resolved, run_dir)
    hf_config = _checked_config(resolved, path)
    encoder = _checked_encoder(resolved, path, hf_config)
    prompts = prompts_of(resolved.source, lambda source: data_checks.train_prompts(source, resolved))
    if not prompts.train:
        raise DataError(f"The source {resolved.source.name!r} offers no prompts to train on.")
    resolved = with_steps_of(resolved, _counted(resolved, prompts.train))
    run = resolved.run  # --epochs is known in steps only now that the prompts are counted
    evals = _evals(resolved, prompts)
    generators = _checked_data(resolved, prompts, evals, encoder)
    model = ModelSpec(
        path=str(path),
        bridge=resolved.model.bridge,
        dtype=_dtype(run, gpu),
        fields=fields,
        weights=_weights(resolved, hf_config),
    )
    roles = role_specs(resolved, model, hf_config, trainer, gpu=gpu)
    trained = {name: roles[policy_role(name)].overlay for name in ("", *run.policies)}
    overlays = {name: overlay for name, overlay in trained.items() if overlay and overlay.travels}
    if not run.serving.engine_url:
        groups = [group_fields(name, resolved) for name in engine_groups(run)]
        for served, overlay in itertools.product((engine_fields, *groups), overlays.values()):
            resolved.engine.build().check_overlay(overlay, model.path, served)
    last_step = resolved.producer.config.last_step()
    prepared = Prepared(
        resolved=resolved,
        run_dir=run_dir,
        resume_from=resume_from,
        evals=evals,
        model=model,
        roles=roles,
        overlays=overlays,
        hf_config=hf_config,
        encoder=encoder,
        prompts=prompts,
        trackers={part.name: built(part, "tracker") for part in resolved.trackers},
        callbacks={part.name: built(part, "callback") for part in resolved.callbacks},
        filters=[built(part, "filter", "judge") for part in resolved.filters],
        generators=generators,
        gpu=gpu,
        engine_fields=engine_fields,
        frozen=() if resolved.producer.config.makes_batches else prepare_frozen(resolved, path),
        facts=_facts(resolved, hf_config),
        # The schedules go on to `steps` all the same.
        last_step=run.steps if last_step is None else min(last_step, run.steps),
    )
    check_external(prepared)
    return prepared


def _load_parts(chosen: Inference) -> None:
    """Import every part. `PluginError` where one is not there."""
    # A preset fits its family's bridge, whose slow import is left to the train workers.
    lazy = chosen.model.bridge if chosen.model.lazy_bridge else None
    for part in chosen.parts():
        check_factory(part.factory, part.name)
        if part is not lazy:
            part.load()


def _checked_config(resolved: Resolved, path: Path) -> Mapping[str, Any]:
    """The model's config.json, after checking that run, engine and bridge can work with it."""
    config = read_config(path)
    check_model(resolved, config)
    if not resolved.run.serving.engine_url:
        resolved.engine.build().check_model(config)
    if resolved.trainer.config.needs_bridge and not resolved.model.lazy_bridge:
        refuse = getattr(resolved.model.bridge.load(), "refuse", None)
        if refuse is not None:  # whether the bridge can work with this model of its family
            refuse(str(path))
    return config


def _evals(resolved: Resolved, prompts: Prompts) -> tuple[PreparedEval, ...]:
    """What the run is evaluated on: the held-out sets, and those of `--eval`."""
    run, held = resolved.run, held_out(resolved, prompts)
    # `--eval` is read even by a run that evaluates nothing: a mistake in it is told all the same.
    every = (*held, *asked_for(resolved, held))
    evals = () if run.debug.only or resolved.producer.config.makes_batches else every
    ends = () if resolved.trains_on is TrainsOn.ROLLOUTS else ("stop", "stop_token_ids")
    refuse(() if evals else unread(run, ("eval_engines", *ends), "nothing is evaluated; leave it out"))
    return evals


def _checked_data(
    resolved: Resolved, prompts: Prompts, evals: Sequence[PreparedEval], encoder: PromptTokenizer
) -> Generators:
    """The generators, after checking that they, the rewards and the scorers can work with the prompts."""
    run, trained_on = resolved.run, data_checks.train_sets(resolved, prompts.train)
    data_checks.check_prompts(encoder, run, trained_on | data_checks.named(evals), resolved.producer.config)
    data_checks.check_columns(run, trained_on)
    data_checks.check_rewards(resolved.rewards, trained_on, prompts.columns)
    generators = _generators(resolved)
    if resolved.samples:
        generators.check(resolved.generator, prompts.train, encoder.tokenizer)
        check_policies(resolved.generator.config, run.policies, prompts.train, trains=True)
    data_checks.check_evals(generators, resolved, evals, encoder)
    check_scored(run.scorers, prompts.train)
    check_vocabulary(run, encoder.tokenizer)
    return generators


def _facts(resolved: Resolved, hf_config: Mapping[str, Any]) -> ModelFacts | None:
    """The model's sizes; None where its family does not tell them, or of an unusual config.json.

    `ConfigError` where they are needed and not told.
    """
    family, facts = resolved.model.family, None
    if family.facts:
        with suppress(KeyError):
            facts = load(family.facts, family.name)(hf_config)
    if facts is None and resolved.run.optimizer.balance == "flops":
        raise ConfigError(
            f"--balance: found flops, but the family {family.name!r} does not tell the sizes of its models; "
            "expected tokens."
        )
    return facts


def _counted(resolved: Resolved, prompts: Sequence[Prompt]) -> int:
    """Prompts in an epoch. ConfigError where --epochs asks for a number that is not known."""
    if resolved.run.epochs and isinstance(resolved.source.build(), DrawingSource):
        raise ConfigError(
            f"--epochs: the source {resolved.source.name!r} says itself what is drawn next, so an epoch of "
            "it has no size; use --steps."
        )
    return len(prompts)


def prepare_served(chosen: Inference, run_dir: Path) -> Served:
    """The same for an evaluation alone, of the model as it is. Loads neither trainer nor bridge."""
    _load_parts(chosen)
    if chosen.run.serving.engine_url:
        raise ConfigError("--engine-url: an evaluation alone starts engines of its own; leave the flag out.")
    engine_fields = checked_engine(chosen)
    gpu = torch.cuda.is_available()
    path = model_path(chosen, run_dir)
    hf_config = read_config(path)
    check_context(chosen, hf_config)
    chosen.engine.build().check_model(hf_config)
    encoder = _checked_encoder(chosen, path, hf_config)
    evals = asked_for(chosen)
    data_checks.check_prompts(encoder, chosen.run, data_checks.named(evals))
    generators = _generators(chosen)
    data_checks.check_evals(generators, chosen, evals, encoder)
    return Served(
        resolved=chosen,
        run_dir=run_dir,
        model=ModelSpec(path=str(path), bridge=chosen.model.bridge, dtype=_dtype(chosen.run, gpu)),
        hf_config=hf_config,
        encoder=encoder,
        evals=evals,
        generators=generators,
        gpu=gpu,
        engine_fields=engine_fields,
        frozen=prepare_frozen(chosen, path),
    )


def _generators(chosen: Inference) -> Generators:
    """The generators of the run and of its evaluations."""
    others = [evaluation.generator for evaluation in chosen.evals if evaluation.generator]
    return Generators([chosen.generator, *others])


def _checked_encoder(chosen: Inference, path: Path, hf_config: Mapping[str, Any]) -> PromptTokenizer:
    """The model's tokenizer, after checking that the weights are there and fit."""
    check_weights(path, shapes=chosen.model.path is not None)
    encoder = PromptTokenizer.load(path, max_prompt_tokens=chosen.run.sampling.max_prompt_tokens)
    vocabulary, tokens = hf_config.get("vocab_size"), len(encoder.tokenizer)
    if vocabulary is not None and vocabulary < tokens:  # a larger one is padded, as most are
        raise ModelError(f"{path}: the tokenizer has {tokens} tokens, the model's vocabulary {vocabulary}.")
    return encoder


def _dtype(run: RunConfig, gpu: bool) -> str:
    return run.dtype if run.dtype != "auto" else ("bf16" if gpu else "fp32")


def _weights(resolved: Resolved, hf_config: Mapping[str, Any]) -> str | None:
    """The checkpoint that `--weights` names, which must be of the run's model."""
    folder = resolved.run.weights
    if not folder:
        return None
    trainer: ConvertingTrainer = resolved.trainer.build()
    path, flag = Path(folder), f"--weights {folder}"
    weights = trainer.weights_in(path)
    if weights is None:
        raise ConfigError(f"--weights: found {folder!r}, which is no checkpoint made by rlcore convert.")
    same = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    check_same(flag, read_config(path, flag), hf_config, same)
    return str(weights)


def model_path(chosen: Inference, run_dir: Path) -> Path:
    """The model's directory; that of a preset is written into `run_dir`."""
    choice = chosen.model
    if choice.path is not None:
        return Path(choice.path)
    path = run_dir / MODEL_DIR
    if not path.exists():
        assert choice.family.preset is not None, "a model without a path is a preset"
        with writing(path):
            load(choice.family.preset, choice.family.name)(path, chosen.run.seed)
    return path
