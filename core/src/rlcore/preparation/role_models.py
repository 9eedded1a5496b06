"""The models beside the policy, of the run's roles and of `--frozen`: where they are, whether they fit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, ModelError
from rlcore.api.part import ModelSpec
from rlcore.api.roles import BASE, POLICY, START, ModelKind, RoleSpec, policy_role
from rlcore.api.server_config import AsksScores
from rlcore.api.tokens import load_tokenizer
from rlcore.api.trainer import AdaptingTrainer, Trainer
from rlcore.checkpoint.folder import check_files
from rlcore.compose import frozen, models
from rlcore.compose.model_checks import check_model
from rlcore.compose.overlay_checks import check_whole
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.roles import of_role, policy_spec
from rlcore.config import toml
from rlcore.engines.classifiers import classifier_of
from rlcore.preparation.prepared import FrozenModel
from rlcore.preparation.run_folder import MODEL_DIR, RUN_TOML
from rlcore.preparation.run_state import FILE
from rlcore.weights.weights_check import check_weights, shapes_in


def role_specs(
    resolved: Resolved, policy: ModelSpec, hf_config: Mapping[str, Any], trainer: Trainer, *, gpu: bool
) -> dict[str, RoleSpec]:
    """Role → its specification: the policy, then the models beside it that train workers hold.

    `policy`: the run's model; `hf_config`: its config.json. `UserError` where another model does not fit it.
    """
    adapts = cast(AdaptingTrainer, trainer)  # the run is refused where it does not
    overlay = adapts.overlay(resolved.run, policy) if resolved.run.has_overlay else None
    specs = {POLICY: policy_spec(policy, resolved.run, overlay)}
    for name in resolved.run.policies:
        with of_role(role := policy_role(name)):
            run = resolved.run.of_policy(name)
            specs[role] = policy_spec(policy, run, adapts.overlay(run, policy))
    for role, table in resolved.roles.items():
        model = policy
        if role in resolved.role_fields:
            with of_role(role):
                fields = trainer.fields(resolved.run, resolved.fields_of(role), gpu=gpu)
            model = replace(policy, fields=fields)
        spec = table.spec(model, resolved.run)
        is_borrowed = overlay and spec.kind is ModelKind.SCORER and _is_own(spec) and not spec.ranks
        built = _role_model(resolved, role, spec, hf_config)
        specs[role] = replace(spec, model=built, is_borrowed=bool(is_borrowed))
    return specs


def _role_model(resolved: Resolved, role: str, spec: RoleSpec, hf_config: Mapping[str, Any]) -> ModelSpec:
    """The model that a role starts from: the run's own, a model directory, or a run's checkpoint."""
    flag, has_values = flag_name(f"{role}.model"), spec.kind is ModelKind.VALUES
    if _is_own(spec):
        if role in resolved.role_fields:
            check_model(resolved, hf_config, role)
        # A converted checkpoint has no head for values.
        return replace(spec.model, weights=None) if has_values else spec.model
    path, weights, at = _directory(flag, spec.source), None, f"{flag} {spec.source}"
    # RUN/checkpoints/STEP has a run state, and a model directory has none.
    if (path / FILE).is_file() and not has_values:
        check_files(path)
        path, weights = _model_of_run(resolved, path.parents[1], flag), str(path / POLICY)
        check_whole(Path(weights), at)
    path = models.adopted(path, resolved.model.adopting, at)
    shares_tokenizer = resolved.run.roles[role].shares_tokenizer
    # Models of one tokenizer pad their vocabularies differently; that matters where all of it is compared.
    pads = shares_tokenizer and not resolved.loss.config.top_tokens
    config = models.read_config(path, at)
    check_same(at, config, hf_config, ("model_type",) if pads else ("model_type", "vocab_size"))
    check_model(resolved, config, role)
    if shares_tokenizer:
        check_tokenizer(at, path, spec.model.path)
    check_weights(path, output_head=not has_values)
    if spec.refresh_every:
        _check_shapes(flag, path, Path(spec.model.path), f"which --{role}.refresh-every copies")
    if spec.is_swapped:
        _check_shapes(flag, path, Path(spec.model.path), f"which it borrows by --{role}.placement swapped")
    return replace(spec.model, path=str(path), weights=weights)


def _is_own(spec: RoleSpec) -> bool:
    """Whether the role begins with the run's model."""
    return spec.source in (START, BASE)


def _directory(flag: str, folder: str) -> Path:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigError(f"{flag}: found {folder!r}, which is no directory.")
    return path


def _model_of_run(resolved: Resolved, run_dir: Path, flag: str) -> Path:
    """The directory of the model that a run started from."""
    if (run_dir / MODEL_DIR).is_dir():
        return run_dir / MODEL_DIR
    name = str(toml.read_settings(run_dir / RUN_TOML, flag)["model"])
    return models.directory_of(name, resolved.model.adopting, flag)


def check_same(flag: str, config: Mapping[str, Any], wanted: Mapping[str, Any], keys: Sequence[str]) -> None:
    """ModelError where one of `keys` differs from `wanted`, the config of the run's model."""
    for key in keys:
        if config.get(key) != wanted.get(key):
            raise ModelError(
                f"{flag}: its {key} is {config.get(key)!r}, expected {wanted.get(key)!r}, "
                "that of the run's model."
            )


def _check_shapes(flag: str, path: Path, policy: Path, why: str) -> None:
    """Check that both models have the same tensors: weights of one are copied into the other."""
    theirs, ours = shapes_in(path), shapes_in(policy)
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise ModelError(
                f"{flag} {path}: its {name} is {theirs.get(name, 'missing')}, expected "
                f"{ours.get(name, 'none')}, that of the run's model, {why}."
            )


def check_tokenizer(flag: str, path: Path, policy: str) -> None:
    """ModelError where the tokenizer of `path` makes other tokens than that of the model in `policy`."""
    tokenizers: list[Any] = [load_tokenizer(directory) for directory in (policy, path)]
    mine, theirs = (dict(tokenizer.get_vocab()) for tokenizer in tokenizers)
    different = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    if different:
        first = different[0]
        raise ModelError(
            f"{flag}: its vocabulary differs in {len(different)} tokens from that of the run's model (the "
            f"id of {first!r} is {theirs.get(first)}, expected {mine.get(first)}); expected a model with "
            "the same tokenizer."
        )


def prepare_frozen(chosen: Inference, policy: Path) -> tuple[FrozenModel, ...]:
    """Find the models of `--frozen`, and check that they fit their users. `UserError` if one does not.

    `policy`: the directory of the run's model, whose tokens one that scores them must know.
    """
    users = list(frozen.uses(chosen))
    return tuple(
        _frozen_model(name, model, chosen, policy, [use for use in users if use.name == name])
        for name, model in frozen.frozen_models(chosen.run).items()
    )


def _frozen_model(
    name: str, model: str, chosen: Inference, policy: Path, users: list[frozen.FrozenUse]
) -> FrozenModel:
    at = f"--frozen {name}={model}"
    source = str(frozen.frozen_directory(at, model) or model)
    path = models.directory_of(source, chosen.model.adopting, at)
    engine, fields = chosen.engine.build(), frozen.fields_of(name, chosen)
    engine.check(fields, table=f"frozen.{name}")
    config = models.read_config(path, at)
    engine.check_model(config)
    classifier = classifier_of(config)
    frozen.check_frozen_config(at, config, users, chosen.context_length)
    check_weights(path, shapes=engine.loads_by_transformers, classifier=classifier is not None)
    for use in users:
        # One without a config gets tokens, and a reward model may have a template of the user's.
        text = use.config.template if isinstance(use.config, AsksScores) else None
        needs_template = use.config is not None and not text
        if needs_template and getattr(load_tokenizer(path), "chat_template", None) is None:
            also = "" if text is None else f", or the text to score by {use.at.removesuffix('url')}template"
            raise ModelError(
                f"{at}: its tokenizer has no chat template, which {use.at} needs; expected a model for "
                f"chats{also}."
            )
        if use.config is None:
            check_tokenizer(at, path, str(policy))
    return FrozenModel(name=name, path=str(path), fields=fields, classifier=classifier is not None)
