"""Checks of the frozen models before a process is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.api.errors import ConfigError, ModelError
from rlcore.api.server_config import AsksScores
from rlcore.api.tokens import load_tokenizer
from rlcore.checkpoint.weights_check import check_weights
from rlcore.compose import models
from rlcore.compose.frozen import FrozenUse, fields_of, frozen_models, uses
from rlcore.engines.classifiers import classifier_of, scores_of
from rlcore.runtime.prepared import FrozenModel
from rlcore.runtime.role_models import check_tokenizer

if TYPE_CHECKING:
    from rlcore.compose.resolved import Inference


def prepare_frozen(chosen: Inference, policy: Path) -> tuple[FrozenModel, ...]:
    """The models of `--frozen`, found and fit for what asks them. `UserError` where one is not.

    `policy`: the directory of the run's model, whose tokens a teacher must know.
    """
    asked = list(uses(chosen))
    return tuple(
        _prepared(name, given, chosen, policy, [use for use in asked if use.name == name])
        for name, given in frozen_models(chosen.run).items()
    )


def _prepared(name: str, given: str, chosen: Inference, policy: Path, asked: list[FrozenUse]) -> FrozenModel:
    at = f"--frozen {name}={given}"
    path, engine, fields = _directory(at, given), chosen.engine.build(), fields_of(name, chosen)
    engine.check(fields, table=f"frozen.{name}")
    config = models.read_config(path, at)
    engine.check_model(config)
    classifier = classifier_of(config)
    for use in asked:
        _check_kind(at, use, classifier)
    check_weights(path, shapes=engine.loads_by_transformers, classifier=classifier is not None)
    for use in asked:
        if _is_templated(use) and getattr(load_tokenizer(path), "chat_template", None) is None:
            own = isinstance(use.config, AsksScores)
            also = f", or the text to score by {use.at.removesuffix('url')}template" if own else ""
            raise ModelError(
                f"{at}: its tokenizer has no chat template, which {use.at} needs; expected a model for "
                f"chats{also}."
            )
        if use.config is None:
            check_tokenizer(at, path, str(policy))
        if isinstance(use.config, AsksScores):
            _check_scores(at, use, use.config, config)
        if use.config is None or isinstance(use.config, AsksScores):
            _check_context(at, config.get("max_position_embeddings"), chosen.context_length)
    return FrozenModel(name=name, path=str(path), fields=fields, classifier=classifier is not None)


def _check_kind(at: str, use: FrozenUse, classifier: str | None) -> None:
    """Scores are asked of a sequence classifier, and everything else of a model that generates."""
    if isinstance(use.config, AsksScores) == (classifier is not None):
        return
    if classifier is None:
        raise ModelError(
            f"{at}: it gives tokens, but {use.at} asks it for scores; expected a reward model, whose "
            "config.json names an architecture such as Qwen3ForSequenceClassification."
        )
    what = "log-probs of tokens" if use.config is None else "chats"
    raise ModelError(
        f"{at}: it is a {classifier}, which gives scores, but {use.at} asks it for {what}; expected a "
        "language model."
    )


def _is_templated(use: FrozenUse) -> bool:
    """Whether the chat template of the model is used: a teacher gets tokens."""
    return not use.config.template if isinstance(use.config, AsksScores) else use.config is not None


def _check_scores(at: str, use: FrozenUse, asked: AsksScores, config: Mapping[str, Any]) -> None:
    """One of the scores is asked for."""
    count, flag = scores_of(config), f"{use.at.removesuffix('url')}label"
    if asked.label is None and count != 1:
        raise ModelError(f"{at}: it gives {count} scores; say by {flag} which of them counts, from 0.")
    if asked.label is not None and asked.label >= count:
        scores = f"{count} scores, the first of them 0" if count > 1 else "one score, 0"
        raise ModelError(f"{at}: {flag} is {asked.label}, but it gives {scores}.")


def _directory(at: str, given: str) -> Path:
    path = Path(given).resolve()
    if path.is_dir():
        return path
    if given.startswith((".", "/", "~")) or given.count("/") != 1:
        raise ConfigError(f"{at}: found {given!r}, which is no directory, nor a hub id (OWNER/NAME).")
    return Path(models.download(given, at))


def _check_context(at: str, found: object, needed: int) -> None:
    if isinstance(found, int) and found < needed:
        raise ModelError(
            f"{at}: its context is {found} tokens, expected at least {needed}, the longest sample that it "
            "scores (--max-prompt-tokens plus --max-response-tokens)."
        )
