"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_tensorboard.config import TensorboardConfig


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """TensorBoard."""
    yield Component(
        name="tensorboard",
        factory="rlcore_tensorboard.tracker:Tensorboard",
        summary="event files for TensorBoard",
        config=TensorboardConfig,
    )
