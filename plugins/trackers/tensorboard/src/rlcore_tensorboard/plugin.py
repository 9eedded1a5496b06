"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """TensorBoard."""
    yield Component(
        name="tensorboard",
        factory="rlcore_tensorboard.tracker:Tensorboard",
        summary="event files for TensorBoard",
        config="rlcore_tensorboard.config:TensorboardConfig",
    )
