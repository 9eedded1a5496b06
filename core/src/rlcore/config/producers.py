"""What core's own producers are for."""

from typing import ClassVar

from rlcore.config.parts import ProducerConfig
from rlcore.trains_on import TrainsOn


class RoundsConfig(ProducerConfig):
    """Of `rounds`."""

    asynchronous: ClassVar[bool | None] = False


class StreamConfig(ProducerConfig):
    """Of `stream`."""

    asynchronous: ClassVar[bool | None] = True


class GivenConfig(ProducerConfig):
    """Of `given`."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES, TrainsOn.PAIRS})
