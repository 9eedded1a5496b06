"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, ForeignSetting, hookimpl


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producer of saved rollouts."""
    yield Component(
        name="saved",
        factory="rlcore_saved.producer:saved_producer",
        summary="rollouts that a run has saved; no engine is started",
        config="rlcore_saved.config:SavedConfig",
    )


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """What chose saved rollouts before there was this package."""
    yield ForeignSetting(
        framework="rlcore before 0.1",
        name="rollouts",
        hint="use --producer saved --producer.path FOLDER in place of --only train --rollouts FOLDER",
    )
