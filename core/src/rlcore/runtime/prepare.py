"""Everything that can be refused before a process is started, and what the run needs of it."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.checkpoint.folder import disk_sentence
from rlcore.config.fit import TOP_EXPERTS, check_context, check_model
from rlcore.config.models import read_config
from rlcore.errors import CheckpointError, ConfigError, DataError, ModelError
from rlcore.interfaces import PairSource, ResponseSource
from rlcore.rollout.generators import Generators
from rlcore.rollout.mix import check_choices, check_machine
from rlcore.rollout.teacher import check_vocabulary
from rlcore.runtime.evals import PreparedEval, asked, asked_for, held_out
from rlcore.runtime.role_models import check_same, role_model, teacher_model
from rlcore.runtime.state import MODEL_DIR, RUN_TOML
from rlcore.runtime.weights_check import check_weights
from rlcore.spec import ModelSpec, Part, RewardPart
from rlcore.trains_on import TrainsOn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlcore.config.resolve import Inference, Resolved
    from rlcore.config.run import RunConfig
    from rlcore.data.tokens import PromptEncoder
    from rlcore.interfaces import Prompts, PromptSource
    from rlcore.types import Prompt

CHECKPOINTS = "checkpoints"
PLUGINS = "plugins"
METRICS = "metrics.jsonl"
CPU_ENGINE = "local"
"""The engine that uses no GPU."""
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
"""Only the input of each layer is kept for the backward pass: memory for a third more arithmetic."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model that engines may serve. `gpu`: whether torch can use one here; the cluster must agree.

    `evals`: what is evaluated. `engine_fields`: `--sglang.<field>`, and those that the run adds to them.
    """

    resolved: Inference
    run_dir: Path
    model: ModelSpec
    hf_config: Mapping[str, Any]
    encoder: PromptEncoder
    evals: tuple[PreparedEval, ...]
    generators: Generators
    gpu: bool
    engine_fields: Mapping[str, Any]

    @property
    def routing_shape(self) -> tuple[int, int] | None:
        """Layers of the model and experts of a token, where the engine's choice of them is replayed."""
        if not self.resolved.run.replay_routing:
            return None
        return int(self.hf_config["num_hidden_layers"]), int(self.hf_config[TOP_EXPERTS])

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Engines of others that are used instead of ones that are started."""
        return ()

    @property
    def context_length(self) -> int:
        """Tokens of prompt and response together."""
        return self.resolved.context_length

    @property
    def shares_gpu(self) -> bool:
        """Whether an engine has a trainer on its device."""
        return False


@dataclass(frozen=True, kw_only=True)
class Prepared(Served):
    """A run that may start. `reference`, `critic`: where their first weights come from, if there are such.

    `teacher`: None where there is none, or an engine is it.
    """

    resolved: Resolved
    resume_from: Path | None
    reference: ModelSpec
    critic: ModelSpec
    teacher: ModelSpec | None
    prompts: Prompts

    @property
    def engines(self) -> int:
        """Engines to start: none where others' are used, or none is needed."""
        return 0 if self.resolved.run.engine_url or self._is_idle else self.resolved.run.engines

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Engines of others that are used instead of ones that are started."""
        return () if self._is_idle else self.resolved.run.engine_url

    @property
    def _is_idle(self) -> bool:
        """Whether responses are given and nothing is evaluated."""
        return self.resolved.trains_on is not TrainsOn.ROLLOUTS and not self.evals

    @property
    def shares_gpu(self) -> bool:
        """Whether an engine has a trainer on its device."""
        return self.gpu and self.resolved.run.placement == "colocate"


@contextmanager
def run_folder(run_dir: Path, resume: bool) -> Iterator[Path]:
    """The run's folder; a new one is removed again where the preparation fails."""
    if resume:
        if not (run_dir / RUN_TOML).is_file():
            raise CheckpointError(f"--resume {run_dir}: no {RUN_TOML} in it, so it is not a run of rlcore.")
        yield run_dir
        return
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise ConfigError(
            f"--run-dir {run_dir}: exists and is not empty; resume it with --resume, or name another."
        )
    made = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--run-dir {run_dir}: cannot be made: {error.strerror}.") from error
    try:
        yield run_dir
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        for parent in made[1:]:
            with suppress(OSError):  # another run has moved in
                parent.rmdir()
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A `CheckpointError` of one sentence where `path` cannot be written."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise CheckpointError(disk_sentence(path, error)) from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} could not be written: {error}.") from error


def prepare(resolved: Resolved, run_dir: Path, resume_from: Path | None) -> Prepared:
    """Check what the user gave against the model, the data and the parts; `UserError` where it doesn't fit.

    Writes nothing but the preset's model into `run_dir`.
    """
    import torch

    for part in _parts(resolved):
        part.load()
    gpu = torch.cuda.is_available()
    megatron = megatron_fields(resolved, gpu)
    engine_fields = {} if resolved.run.engine_url else _checked_engine(resolved)
    _check_router(resolved)
    if resolved.run.replay_routing and "moe" in megatron.get("recompute_modules", ()):
        raise ConfigError(
            "--megatron.recompute-modules: found moe with --replay-routing, but a layer of experts that is "
            "computed again alone chooses anew; expected --megatron.recompute-granularity full."
        )
    _check_placement(resolved, gpu)
    path = model_path(resolved, run_dir)
    hf_config = read_config(path)
    check_model(resolved, hf_config)
    encoder = _checked_encoder(resolved, path, hf_config)
    run = resolved.run
    prompts = asked(resolved.source, lambda source: _asked(source, resolved))
    if not prompts.train:
        raise DataError(f"The source {resolved.source.name!r} offers no prompts to train on.")
    evals = held_out(resolved, prompts)
    evals += asked_for(resolved, evals)
    _check_prompts(encoder, run, _train_sets(resolved, prompts.train) | _named(evals))
    _check_rewards([(resolved.rewards, prompts.train), *_judged(resolved, evals)])
    generators = _generators(resolved)
    if resolved.trains_on is TrainsOn.ROLLOUTS:
        generators.check(resolved.generator, prompts.train, encoder.tokenizer)
    _check_answered(generators, resolved, evals, encoder)
    if run.teacher_url:
        check_vocabulary(run, encoder.tokenizer)
    model = ModelSpec(
        path=str(path),
        bridge=resolved.model.bridge,
        dtype=_dtype(run, gpu),
        megatron=megatron,
        weights=_weights(run.weights, hf_config),
    )
    prepared = Prepared(
        resolved=resolved,
        run_dir=run_dir,
        resume_from=resume_from,
        evals=evals,
        model=model,
        reference=role_model(resolved, "reference_model", model, hf_config),
        critic=role_model(resolved, "critic_model", replace(model, weights=None), hf_config),
        teacher=teacher_model(resolved, model, hf_config),
        hf_config=hf_config,
        encoder=encoder,
        prompts=prompts,
        generators=generators,
        gpu=gpu,
        engine_fields=engine_fields,
    )
    _check_external(prepared)
    return prepared


def _check_external(prepared: Prepared) -> None:
    if not prepared.engine_urls:
        return  # spares the driver aiohttp's import
    from rlcore.engines.external import Wanted, check_all

    wanted = Wanted(
        model_type=prepared.hf_config["model_type"],
        dtype=prepared.model.dtype,
        context_length=prepared.context_length,
    )
    check_all(prepared.engine_urls, wanted, limit_s=prepared.resolved.run.engine_health_limit)


def prepare_served(chosen: Inference, run_dir: Path) -> Served:
    """The same for an evaluation alone: of the model as it is, with no trainer."""
    import torch

    for part in _eval_parts(chosen):
        part.load()
    if chosen.run.engine_url:
        raise ConfigError("--engine-url: an evaluation alone starts engines of its own; leave the flag out.")
    engine_fields = _checked_engine(chosen)
    _check_router(chosen)
    gpu = torch.cuda.is_available()
    path = model_path(chosen, run_dir)
    hf_config = read_config(path)
    check_context(chosen, hf_config)
    encoder = _checked_encoder(chosen, path, hf_config)
    evals = asked_for(chosen)
    _check_prompts(encoder, chosen.run, _named(evals))
    _check_rewards(_judged(chosen, evals))
    generators = _generators(chosen)
    _check_answered(generators, chosen, evals, encoder)
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
    )


def _check_answered(
    generators: Generators, chosen: Inference, evals: Sequence[PreparedEval], encoder: PromptEncoder
) -> None:
    """The generator of each evaluation can answer its prompts."""
    for one in evals:
        generators.check(one.settings.generator or chosen.generator, one.prompts, encoder.tokenizer)


def _generators(chosen: Inference) -> Generators:
    """The run's, and those of evaluations that have their own."""
    return Generators([chosen.generator, *(one.generator for one in chosen.evals if one.generator)])


def _check_router(chosen: Inference) -> None:
    if chosen.run.router is not None:
        from rlcore.engines.router import require_router

        require_router()


def _check_ports(first: int | None, engines: int) -> None:
    """`--engine.port` and those after it can be listened on."""
    from rlcore.engines.process import is_free

    for port in range(first, first + engines) if first else ():
        if not is_free(port):
            raise ConfigError(
                f"--engine.port: found {first} for {engines} engines, but port {port} of this machine is in "
                "use, or none; name another."
            )


def _checked_engine(chosen: Inference) -> Mapping[str, Any]:
    """The fields of the engine's server, which knows them all and is installed."""
    engine = chosen.engine.build()
    fields = chosen.sglang
    if chosen.run.replay_routing:
        if engine.routing_fields is None:
            raise ConfigError(
                f"--replay-routing: found true, but the engine {chosen.engine.name!r} does not give the "
                "experts that it chose; leave it out, or take --engine local or sglang."
            )
        fields = {**fields, **engine.routing_fields}
    engine.check(fields)
    _check_ports(engine.config.port, chosen.run.engines)
    return fields


def _checked_encoder(chosen: Inference, path: Path, hf_config: Mapping[str, Any]) -> PromptEncoder:
    """The tokenizer of the model, whose weights are there and fit."""
    from rlcore.data.tokens import PromptEncoder

    refuse = getattr(chosen.model.bridge.load(), "refuse", None)
    if refuse is not None:
        refuse(str(path))
    check_weights(path, shapes=chosen.model.path is not None)
    encoder = PromptEncoder.load(path, max_prompt_tokens=chosen.run.max_prompt_tokens)
    _check_vocabulary(path, hf_config, len(encoder.tokenizer))
    return encoder


def _dtype(run: RunConfig, gpu: bool) -> str:
    return run.dtype if run.dtype != "auto" else ("bf16" if gpu else "fp32")


def _train_sets(resolved: Resolved, train: Sequence[Prompt]) -> dict[str, Sequence[Prompt]]:
    """What is trained on, by a name for errors: each source of a mix."""
    from rlcore.data.mix import Mix

    if isinstance(train, Mix):
        return {f"--data {portion.name}": portion.prompts for portion in train.portions}
    return {str(resolved.flat().get("data") or f"--task {resolved.source.name}"): train}


def _named(evals: Sequence[PreparedEval]) -> dict[str, Sequence[Prompt]]:
    return {f"held-out set {one.name!r}": one.prompts for one in evals}


def _check_placement(resolved: Resolved, gpu: bool) -> None:
    """`split` gives engines devices of their own: there must be devices, and an engine that uses them."""
    if resolved.run.placement == "colocate" or (gpu and resolved.engine.name != CPU_ENGINE):
        return
    reason = f"--engine {CPU_ENGINE} computes on the CPU" if gpu else "this machine has no GPU to divide"
    raise ConfigError(f"--placement: found split, but {reason}; leave the flag out.")


def left_out(hf_config: Mapping[str, Any]) -> str | None:
    """What of the model takes no part in a run, as a sentence."""
    layers = hf_config.get("num_nextn_predict_layers")
    if not layers:
        return None
    return (
        f"The model's multi-token prediction ({layers} layers) is left out: not trained, published or saved."
    )


def _weights(given: str, hf_config: Mapping[str, Any]) -> str | None:
    """The checkpoint that `--weights` names, which must be of the run's model."""
    if not given:
        return None
    from rlcore.runtime.convert import WEIGHTS, is_dist

    path = Path(given)
    if not is_dist(path):
        raise ConfigError(f"--weights: found {given!r}, which is no checkpoint made by rlcore convert.")
    same = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    check_same(f"--weights {given}", read_config(path, f"--weights {given}"), hf_config, same)
    return str(path / WEIGHTS)


def megatron_fields(resolved: Resolved, gpu: bool) -> Mapping[str, Any]:
    """What was given, checked; and on a GPU recomputation, unless something was said of it."""
    recompute = gpu and not any(name.startswith("recompute_") for name in resolved.megatron)
    if not resolved.megatron:
        return RECOMPUTE if recompute else {}  # spares the driver megatron's import
    from rlcore.megatron.fields import check_fields

    return {**(RECOMPUTE if recompute else {}), **check_fields(resolved.megatron)}


def _parts(resolved: Resolved) -> list[Part]:
    some = [resolved.advantage, resolved.value_loss]
    chosen = [resolved.loss, resolved.generator, resolved.engine, *(part for part in some if part)]
    lists = (*resolved.rewards, *resolved.filters, *resolved.corrections)
    return [*chosen, resolved.source, resolved.model.bridge, *lists, *_eval_parts(resolved)]


def _eval_parts(chosen: Inference) -> list[Part]:
    own = [(one.source, one.reward, one.generator) for one in chosen.evals]
    parts = [part for of_one in own for part in of_one if part]
    return [*parts, chosen.generator, chosen.engine, *chosen.rewards]


def model_path(chosen: Inference, run_dir: Path) -> Path:
    """The model's directory; that of a preset is written into `run_dir`."""
    choice = chosen.model
    if choice.path is not None:
        return Path(choice.path)
    path = run_dir / MODEL_DIR
    if not path.exists():
        assert choice.preset is not None, "a model without a path is a preset"
        module, _, function = choice.preset.partition(":")
        write = getattr(importlib.import_module(module), function)
        with writing(path):
            write(path, chosen.run.seed)
    return path


def _check_prompts(encoder: PromptEncoder, run: RunConfig, sets: Mapping[str, Sequence[Prompt]]) -> None:
    from rlcore.data.responses import ResponseEncoder

    given = ResponseEncoder(encoder, run.max_response_tokens)
    for where, rows in sets.items():
        try:
            encoder.check(rows)
            given.check(rows)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error


def _judged(
    chosen: Inference, evals: Sequence[PreparedEval]
) -> list[tuple[tuple[RewardPart, ...], Sequence[Prompt]]]:
    return [(one.settings.judged_by(chosen.rewards), one.prompts) for one in evals]


def _check_rewards(judged: Sequence[tuple[tuple[RewardPart, ...], Sequence[Prompt]]]) -> None:
    """Whether this machine has what rewards need, and prompts name no others than are there."""
    for rewards, prompts in judged:
        for part in rewards:
            check_machine(part)
        check_choices(prompts, rewards)


def _asked(source: PromptSource, resolved: Resolved) -> Prompts:
    """The prompts, with the responses that the recipe trains on."""
    wanted, name = resolved.trains_on, resolved.source.name
    if wanted is TrainsOn.ROLLOUTS:
        return source.prompts()
    if wanted is TrainsOn.RESPONSES and isinstance(source, ResponseSource):
        return source.with_responses()
    if wanted is TrainsOn.PAIRS and isinstance(source, PairSource):
        return source.with_pairs()
    kind, keys = (
        ("responses", "prompt and response")
        if wanted is TrainsOn.RESPONSES
        else ("pairs of responses", "prompt, chosen and rejected")
    )
    raise DataError(
        f"--algo {resolved.algorithm} trains on {wanted}, but the source {name!r} offers no {kind}; "
        f"give --data FILE with {keys} in each row."
    )


def _check_vocabulary(path: Path, hf_config: Mapping[str, Any], tokens: int) -> None:
    vocabulary = hf_config.get("vocab_size")
    if vocabulary is not None and vocabulary < tokens:
        raise ModelError(
            f"{path}: the tokenizer has {tokens} tokens, and the model's vocabulary only {vocabulary}."
        )
