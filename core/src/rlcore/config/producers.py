"""The configs of core's own producers, which say which runs they suit."""

from typing import ClassVar

from rlcore.api.part_config import ProducerConfig


class SynchronousConfig(ProducerConfig):
    """Config of the producer `synchronous`."""

    asynchronous: ClassVar[bool | None] = False


class AsynchronousConfig(ProducerConfig):
    """Config of the producer `asynchronous`."""

    asynchronous: ClassVar[bool | None] = True
