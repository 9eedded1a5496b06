"""Checks of the frozen models: their names, their settings, and what their config.json says they can do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.api.errors import ConfigError, ModelError, did_you_mean
from rlcore.api.server_config import AsksScores
from rlcore.compose.engine_groups import server_field_complaints
from rlcore.compose.frozen import FROZEN, FrozenUse, frozen_models, uses
from rlcore.compose.models import read_config
from rlcore.engines.classifiers import classifier_of, scores_of

if TYPE_CHECKING:
    from rlcore.compose.resolved import Inference


def frozen_complaints(chosen: Inference) -> Iterator[str]:
    """Unknown names, models that nothing asks, and fields for an engine that takes none."""
    models, asked = frozen_models(chosen.run), list(uses(chosen))
    for use in asked:
        if use.name not in models:
            guess = did_you_mean(use.name, models)
            yield (
                f"{use.at}: found 'frozen:{use.name}', but --frozen names no {use.name!r}; add --frozen "
                f"{use.name}=MODEL.{guess}"
            )
    for name in models:
        if name not in {use.name for use in asked}:
            yield (
                f"--frozen: found {name!r}, which nothing asks; give frozen:{name} where a server's URL is "
                "expected, as to --teacher-url, --reward.judge.url or --reward.reward-model.url, or leave it "
                "out."
            )
    settings = (f"{FROZEN}.{key}" for key in chosen.frozen_fields)
    yield from server_field_complaints(settings, "frozen model", models, chosen.engine)


def check_frozen(chosen: Inference) -> None:
    """Compare each model's config.json with what the run asks of it. Raises `UserError`.

    Hub ids are left for the start of the run, which fetches them.
    """
    asked = list(uses(chosen))
    for name, model in frozen_models(chosen.run).items():
        at = f"--frozen {name}={model}"
        directory = frozen_directory(at, model)
        if directory is not None:
            named = [use for use in asked if use.name == name]
            check_frozen_config(at, read_config(directory, at), named, chosen.context_length)


def frozen_directory(at: str, model: str) -> Path | None:
    """The directory that `--frozen` names; None: it is a hub id. `ConfigError` where it is neither."""
    path = Path(model).resolve()
    if path.is_dir():
        return path
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"{at}: found {model!r}, which is no directory, nor a hub id (OWNER/NAME).")
    return None


def check_frozen_config(at: str, config: Mapping[str, Any], asked: Iterable[FrozenUse], longest: int) -> None:
    """`ModelError` where the model of this config.json cannot give what it is asked for.

    `longest`: tokens of the longest sample of the run.
    """
    classifier = classifier_of(config)
    for use in asked:
        _check_kind(at, use, classifier)
        if isinstance(use.config, AsksScores):
            _check_scores(at, use, use.config, config)
        # A judge gets chats of its own, which the server cuts; teachers and reward models get whole samples.
        context = config.get("max_position_embeddings")
        reads_samples = use.config is None or isinstance(use.config, AsksScores)
        if reads_samples and isinstance(context, int) and context < longest:
            raise ModelError(
                f"{at}: its context is {context} tokens, expected at least {longest}, the longest sample "
                "it scores (--max-prompt-tokens plus --max-response-tokens)."
            )


def _check_kind(at: str, use: FrozenUse, classifier: str | None) -> None:
    """A reward model asks a sequence classifier for scores. Judges and teachers ask a language model."""
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


def _check_scores(at: str, use: FrozenUse, asked: AsksScores, config: Mapping[str, Any]) -> None:
    """A classifier with several labels has several scores, and `label` says which one is the reward."""
    count, flag = scores_of(config), f"{use.at.removesuffix('url')}label"
    if asked.label is None and count != 1:
        raise ModelError(f"{at}: it gives {count} scores; say by {flag} which of them counts, from 0.")
    if asked.label is not None and asked.label >= count:
        scores = f"{count} scores, the first of them 0" if count > 1 else "one score, 0"
        raise ModelError(f"{at}: {flag} is {asked.label}, but it gives {scores}.")
