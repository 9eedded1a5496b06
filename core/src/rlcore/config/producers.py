"""What core's own producers are for."""

from typing import ClassVar

from rlcore.api.inputs import TrainsOn
from rlcore.api.part_config import ProducerConfig


class RoundsConfig(ProducerConfig):
    """Of `rounds`."""

    asynchronous: ClassVar[bool | None] = False


class StreamConfig(ProducerConfig):
    """Of `stream`."""

    asynchronous: ClassVar[bool | None] = True


class GivenConfig(ProducerConfig):
    """Of `given`."""

    trains_on: ClassVar[frozenset[TrainsOn]] = frozenset({TrainsOn.RESPONSES, TrainsOn.PAIRS})
