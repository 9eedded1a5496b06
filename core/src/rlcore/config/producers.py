"""What core's own producers are for."""

from typing import ClassVar

from rlcore.api.inputs import TrainsOn
from rlcore.api.part_config import ProducerConfig


class SynchronousConfig(ProducerConfig):
    """Of `rounds`."""

    asynchronous: ClassVar[bool | None] = False


class AsynchronousConfig(ProducerConfig):
    """Of `stream`."""

    asynchronous: ClassVar[bool | None] = True


class OfflineConfig(ProducerConfig):
    """Of `given`."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES, TrainsOn.PAIRS})
