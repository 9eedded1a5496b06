"""What this distribution registers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    yield Component(
        name="replay",
        factory="rlcore_replay.generator:Replay",
        config="rlcore_replay.config:ReplayConfig",
        summary="responses that a run has saved, token by token",
    )
