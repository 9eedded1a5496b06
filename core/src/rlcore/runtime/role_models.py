"""The models beside the policy, of the run's roles and of `--frozen`: where they are, whether they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, ModelError
from rlcore.api.part import ModelSpec
from rlcore.api.server_config import AsksScores
from rlcore.api.tokens import load_tokenizer
from rlcore.checkpoint.folder import check_files
from rlcore.checkpoint.weights_check import check_weights, shapes_in
from rlcore.compose import frozen, models
from rlcore.compose.model_checks import check_model
from rlcore.compose.resolved import Inference, Resolved
from rlcore.compose.roles import POLICY
from rlcore.config import toml
from rlcore.engines.classifiers import classifier_of
from rlcore.runtime.prepared import FrozenModel
from rlcore.runtime.run_folder import MODEL_DIR, RUN_TOML
from rlcore.runtime.state import FILE


def role_model(resolved: Resolved, setting: str, model: ModelSpec, hf_config: Mapping[str, Any]) -> ModelSpec:
    """The model of another role: `model`, or the directory that `setting` names, which must be its like."""
    folder, flag = resolved.run.values()[setting], flag_name(setting)
    role = setting.removesuffix("_model")
    if not folder:
        if role in resolved.role_fields:
            check_model(resolved, hf_config, role)
        return model
    path = _directory(flag, folder)
    _check_like(resolved, f"{flag} {folder}", path, hf_config, ("model_type", "vocab_size"), role)
    check_weights(path, output_head=setting != "critic_model")
    if setting == "reference_model" and resolved.run.kl.reference_refresh_every:
        _check_shapes(flag, path, Path(model.path), "which --reference-refresh-every copies")
    if setting == "reference_model" and resolved.run.kl.reference_placement == "swapped":
        _check_shapes(flag, path, Path(model.path), "which it borrows by --reference-placement swapped")
    return replace(model, path=str(path), weights=None)


def teacher_model(resolved: Resolved, model: ModelSpec, hf_config: Mapping[str, Any]) -> ModelSpec | None:
    """The model of `--teacher-model`, a model directory or a run's checkpoint; None where there is none.

    `UserError` if its tokenizer is not that of `model`: the same token would stand for different texts.
    """
    folder = resolved.run.teacher.teacher_model
    if not folder:
        return None
    path, weights, flag = _directory("--teacher-model", folder), None, f"--teacher-model {folder}"
    # RUN/checkpoints/STEP has a run state, and a model directory has none.
    if (path / FILE).is_file():
        check_files(path)
        path, weights = _model_of_run(path.parents[1]), str(path / POLICY)
    # Models of one tokenizer pad their vocabularies differently; that matters where all of it is compared.
    like = ("model_type", "vocab_size") if resolved.loss.config.top_tokens else ("model_type",)
    _check_like(resolved, flag, path, hf_config, like, "teacher")
    check_tokenizer(flag, path, model.path)
    check_weights(path)
    return replace(model, path=str(path), weights=weights)


def _directory(flag: str, folder: str) -> Path:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigError(f"{flag}: found {folder!r}, which is no directory.")
    return path


def _model_of_run(run_dir: Path) -> Path:
    """The directory of the model that a run started from."""
    if (run_dir / MODEL_DIR).is_dir():
        return run_dir / MODEL_DIR
    name = str(toml.read_settings(run_dir / RUN_TOML, "--teacher-model")["model"])
    return Path(name if Path(name).is_dir() else models.download(name))


def _check_like(
    resolved: Resolved, asked: str, path: Path, hf_config: Mapping[str, Any], keys: tuple[str, ...], role: str
) -> None:
    config = models.read_config(path, asked)
    check_same(asked, config, hf_config, keys)
    check_model(resolved, config, role)


def check_same(
    asked: str, config: Mapping[str, Any], expected: Mapping[str, Any], keys: Sequence[str]
) -> None:
    """ModelError where one of `keys` differs from `expected`, the config of the run's model."""
    for key in keys:
        if config.get(key) != expected.get(key):
            raise ModelError(
                f"{asked}: its {key} is {config.get(key)!r}, expected {expected.get(key)!r}, "
                "that of the run's model."
            )


def _check_shapes(flag: str, path: Path, own: Path, why: str) -> None:
    """Check that both models have the same tensors: weights of one are copied into the other."""
    theirs, ours = shapes_in(path), shapes_in(own)
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            raise ModelError(
                f"{flag} {path}: its {name} is {theirs.get(name, 'missing')}, expected "
                f"{ours.get(name, 'none')}, that of the run's model, {why}."
            )


def check_tokenizer(asked: str, path: Path, policy: str) -> None:
    """ModelError where the tokenizer of `path` makes other tokens than that of the model in `policy`."""

    def vocabulary(directory: str | Path) -> dict[str, int]:
        tokenizer: Any = load_tokenizer(directory)
        return dict(tokenizer.get_vocab())

    mine, theirs = vocabulary(policy), vocabulary(path)
    different = sorted(token for token in mine.keys() | theirs.keys() if mine.get(token) != theirs.get(token))
    if different:
        first = different[0]
        raise ModelError(
            f"{asked}: its vocabulary differs in {len(different)} tokens from that of the run's model (the "
            f"id of {first!r} is {theirs.get(first)}, expected {mine.get(first)}); expected a teacher with "
            "the same tokenizer."
        )


def prepare_frozen(chosen: Inference, policy: Path) -> tuple[FrozenModel, ...]:
    """Find the models of `--frozen`, and check that they fit their users. `UserError` if one does not.

    `policy`: the directory of the run's model, whose tokens a teacher must know.
    """
    asked = list(frozen.uses(chosen))
    return tuple(
        _frozen_model(name, model, chosen, policy, [use for use in asked if use.name == name])
        for name, model in frozen.frozen_models(chosen.run).items()
    )


def _frozen_model(
    name: str, model: str, chosen: Inference, policy: Path, asked: list[frozen.FrozenUse]
) -> FrozenModel:
    at = f"--frozen {name}={model}"
    path = frozen.frozen_directory(at, model) or Path(models.download(model, at))
    engine, fields = chosen.engine.build(), frozen.fields_of(name, chosen)
    engine.check(fields, table=f"frozen.{name}")
    config = models.read_config(path, at)
    engine.check_model(config)
    classifier = classifier_of(config)
    frozen.check_frozen_config(at, config, asked, chosen.context_length)
    check_weights(path, shapes=engine.loads_by_transformers, classifier=classifier is not None)
    for use in asked:
        # A teacher (no config) gets tokens, and a reward model may have a template of the user's.
        own = use.config.template if isinstance(use.config, AsksScores) else None
        needs_template = use.config is not None and not own
        if needs_template and getattr(load_tokenizer(path), "chat_template", None) is None:
            also = "" if own is None else f", or the text to score by {use.at.removesuffix('url')}template"
            raise ModelError(
                f"{at}: its tokenizer has no chat template, which {use.at} needs; expected a model for "
                f"chats{also}."
            )
        if use.config is None:
            check_tokenizer(at, path, str(policy))
    return FrozenModel(name=name, path=str(path), fields=fields, classifier=classifier is not None)
