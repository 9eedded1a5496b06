"""Checks of the frozen models' settings: each says in one sentence what to change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlcore.api.config import flag_name
from rlcore.api.errors import did_you_mean
from rlcore.compose.frozen import frozen_models, uses

if TYPE_CHECKING:
    from rlcore.compose.resolved import Inference


def frozen_complaints(chosen: Inference) -> Iterator[str]:
    """Names that there are not, models that nothing asks, fields that no server takes."""
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
    for key in chosen.frozen_fields:
        flag, name = flag_name(f"frozen.{key}"), key.partition(".")[0]
        if name not in models:
            guess = did_you_mean(name, models)
            yield f"{flag} belongs to the frozen model {name!r}, which there is not.{guess}"
        if not chosen.engine.config.table:
            yield f"{flag}: the engine {chosen.engine.name!r} takes no fields of its own; leave it out."
