"""Models that a run serves and never trains (`--frozen NAME=MODEL`), and the settings that ask them.

The checks are of their names, their settings, and what their config.json says they can do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlcore.api.config import flag_name
from rlcore.api.errors import ConfigError, ModelError, did_you_mean
from rlcore.api.part import Part
from rlcore.api.run_config import RunConfig
from rlcore.api.server_config import AsksScores, AsksServer, frozen_name
from rlcore.compose.engine_groups import ENGINE_GROUP, assigned, server_field_complaints
from rlcore.compose.models import read_config
from rlcore.compose.resolved import Inference
from rlcore.config import layers
from rlcore.config.layers import Layer
from rlcore.engines.classifiers import classifier_of, scores_of

FROZEN = "frozen"


@dataclass(frozen=True, kw_only=True)
class FrozenUse:
    """A setting that asks the frozen model `name`.

    `at`: its flag. `config`: of the reward that asks; None: the model scores tokens.
    """

    at: str
    name: str
    config: AsksServer | None


def with_tables_as_lists(layer: Layer) -> Layer:
    """`layer` with the tables of a file as the lists that the flags make.

    `frozen.NAME = MODEL` becomes `NAME=MODEL` in `frozen`, and `engine_group.NAME = N` `NAME=N` in
    `engine_group`.
    """
    return _as_list(_as_list(layer, FROZEN, str, "a directory or a hub id"), ENGINE_GROUP, int, "a number")


def _as_list(layer: Layer, table: str, kind: type, expected: str) -> Layer:
    keys = [key for key in layer.values if key.startswith(f"{table}.") and key.count(".") == 1]
    if not keys:
        return layer
    values = {key: value for key, value in layer.values.items() if key not in keys}
    names = [*values.get(table, ())]
    for key in keys:
        if not isinstance(layer.values[key], kind):
            value = layers.shown(layer.values[key])
            raise ConfigError(f"{layer.at(key)}: found {value}, expected {expected}.")
        names.append(f"{key.partition('.')[2]}={layer.values[key]}")
    return replace(layer, values={**values, table: names})


def frozen_models(run: RunConfig) -> dict[str, str]:
    """Name → directory or hub id. Raises `ConfigError`."""
    expected = "NAME=MODEL, with a name of lower-case letters, digits and underscores"
    return assigned("--frozen", run.serving.frozen, expected, bool)


def with_absolute_paths(assignments: Sequence[str]) -> tuple[str, ...]:
    """`assignments` with absolute directories, which a resume finds from anywhere. Hub ids stay."""
    pairs = [assignment.partition("=") for assignment in assignments]
    return tuple(
        f"{name}={Path(model).resolve()}" if model and Path(model).is_dir() else f"{name}{equals}{model}"
        for name, equals, model in pairs
    )


def uses(chosen: Inference) -> Iterator[FrozenUse]:
    """Every setting that asks a frozen model."""
    for at, url in chosen.run.scoring_urls.items():
        if (name := frozen_name(url)) is not None:
            yield FrozenUse(at=at, name=name, config=None)
    rewards: list[tuple[str, Part]] = [(f"reward.{part.name}", part) for part in chosen.rewards]
    rewards += [
        (f"eval.{evaluation.name}.reward", evaluation.reward)
        for evaluation in chosen.evals
        if evaluation.reward is not None
    ]
    for table, part in rewards:
        config = part.config
        if isinstance(config, AsksServer) and (name := frozen_name(config.url)) is not None:
            yield FrozenUse(at=flag_name(f"{table}.url"), name=name, config=config)


def fields_of(name: str, chosen: Inference) -> Mapping[str, Any]:
    """The fields for the server of the frozen model `name`, as the user gave them."""
    return layers.of_table(name, chosen.frozen_fields)


def frozen_complaints(chosen: Inference) -> Iterator[str]:
    """Unknown names, models that nothing asks, and fields for an engine that takes none."""
    models, users = frozen_models(chosen.run), list(uses(chosen))
    for use in users:
        if use.name not in models:
            guess = did_you_mean(use.name, models)
            yield (
                f"{use.at}: found 'frozen:{use.name}', but --frozen names no {use.name!r}; add --frozen "
                f"{use.name}=MODEL.{guess}"
            )
    for name in models:
        if name not in {use.name for use in users}:
            yield (
                f"--frozen: found {name!r}, which nothing asks; give frozen:{name} where the URL of a server "
                "is expected, as to --reward.judge.url, or leave it out."
            )
    settings = (f"{FROZEN}.{key}" for key in chosen.frozen_fields)
    yield from server_field_complaints(settings, "frozen model", models, chosen.engine)


def check_frozen(chosen: Inference) -> None:
    """Compare each model's config.json with what the run asks of it. Raises `UserError`.

    Hub ids are left for the start of the run, which fetches them.
    """
    users = list(uses(chosen))
    for name, model in frozen_models(chosen.run).items():
        at = f"--frozen {name}={model}"
        directory = frozen_directory(at, model)
        if directory is not None:
            named = [use for use in users if use.name == name]
            check_frozen_config(at, read_config(directory, at), named, chosen.context_length)


def frozen_directory(at: str, model: str) -> Path | None:
    """The directory that `--frozen` names; None: it is a hub id. `ConfigError` where it is neither."""
    path = Path(model).resolve()
    if path.is_dir():
        return path
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(f"{at}: found {model!r}, which is no directory, nor a hub id (OWNER/NAME).")
    return None


def check_frozen_config(at: str, config: Mapping[str, Any], users: Iterable[FrozenUse], longest: int) -> None:
    """`ModelError` where the model of this config.json cannot give what it is asked for.

    `longest`: tokens of the longest sample of the run.
    """
    classifier = classifier_of(config)
    for use in users:
        _check_kind(at, use, classifier)
        if isinstance(use.config, AsksScores):
            _check_scores(at, use, use.config, config)
        # A judge gets chats of its own, which the server cuts; scorers and reward models get whole samples.
        context = config.get("max_position_embeddings")
        reads_samples = use.config is None or isinstance(use.config, AsksScores)
        if reads_samples and isinstance(context, int) and context < longest:
            raise ModelError(
                f"{at}: its context is {context} tokens, expected at least {longest}, the longest sample "
                "it scores (--max-prompt-tokens plus --max-response-tokens)."
            )


def _check_kind(at: str, use: FrozenUse, classifier: str | None) -> None:
    """A reward model asks a sequence classifier for scores. Others ask a language model."""
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


def _check_scores(at: str, use: FrozenUse, reward: AsksScores, config: Mapping[str, Any]) -> None:
    """A classifier with several labels has several scores, and `label` says which one is the reward."""
    count, flag = scores_of(config), f"{use.at.removesuffix('url')}label"
    if reward.label is None and count != 1:
        raise ModelError(f"{at}: it gives {count} scores; say by {flag} which of them counts, from 0.")
    if reward.label is not None and reward.label >= count:
        scores = f"{count} scores, the first of them 0" if count > 1 else "one score, 0"
        raise ModelError(f"{at}: {flag} is {reward.label}, but it gives {scores}.")
