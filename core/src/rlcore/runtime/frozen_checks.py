"""Checks of the frozen models before a process is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.api.errors import ModelError
from rlcore.api.server_config import AsksScores
from rlcore.api.tokens import load_tokenizer
from rlcore.checkpoint.weights_check import check_weights
from rlcore.compose import models
from rlcore.compose.frozen import (
    FrozenUse,
    check_frozen_config,
    fields_of,
    frozen_directory,
    frozen_models,
    uses,
)
from rlcore.engines.classifiers import classifier_of
from rlcore.runtime.prepared import FrozenModel
from rlcore.runtime.role_models import check_tokenizer

if TYPE_CHECKING:
    from rlcore.compose.resolved import Inference


def prepare_frozen(chosen: Inference, policy: Path) -> tuple[FrozenModel, ...]:
    """Find the models of `--frozen`, and check that they fit their users. `UserError` if one does not.

    `policy`: the directory of the run's model, whose tokens a teacher must know.
    """
    asked = list(uses(chosen))
    return tuple(
        _checked(name, model, chosen, policy, [use for use in asked if use.name == name])
        for name, model in frozen_models(chosen.run).items()
    )


def _checked(name: str, model: str, chosen: Inference, policy: Path, asked: list[FrozenUse]) -> FrozenModel:
    at = f"--frozen {name}={model}"
    path = frozen_directory(at, model) or Path(models.download(model, at))
    engine, fields = chosen.engine.build(), fields_of(name, chosen)
    engine.check(fields, table=f"frozen.{name}")
    config = models.read_config(path, at)
    engine.check_model(config)
    classifier = classifier_of(config)
    check_frozen_config(at, config, asked, chosen.context_length)
    check_weights(path, shapes=engine.loads_by_transformers, classifier=classifier is not None)
    for use in asked:
        own = isinstance(use.config, AsksScores)
        # A teacher (no config) gets tokens, and a reward model may have a template of the user's.
        needs_template = (
            not use.config.template if isinstance(use.config, AsksScores) else use.config is not None
        )
        if needs_template and getattr(load_tokenizer(path), "chat_template", None) is None:
            also = f", or the text to score by {use.at.removesuffix('url')}template" if own else ""
            raise ModelError(
                f"{at}: its tokenizer has no chat template, which {use.at} needs; expected a model for "
                f"chats{also}."
            )
        if use.config is None:
            check_tokenizer(at, path, str(policy))
    return FrozenModel(name=name, path=str(path), fields=fields, classifier=classifier is not None)
