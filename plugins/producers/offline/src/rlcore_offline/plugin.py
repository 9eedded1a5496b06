"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_offline.config import OfflineConfig


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producer of recipes that train on given responses or pairs."""
    yield Component(
        name="offline",
        factory="rlcore_offline.producer:offline_producer",
        summary="the responses that the data give",
        config=OfflineConfig,
        default=True,
    )
