"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="single_turn",
        factory="rlcore_single_turn.generator:SingleTurn",
        config="rlcore_single_turn.config:SingleTurnConfig",
        summary="one answer to each prompt, one request a group",
        default=True,
    )
