"""The configs of the producers, which say which runs they suit."""

from typing import ClassVar

from rlcore import ProducerConfig


class SynchronousConfig(ProducerConfig):
    """Config of the producer `synchronous`."""

    asynchronous: ClassVar[bool | None] = False


class AsynchronousConfig(ProducerConfig):
    """Config of the producer `asynchronous`."""

    asynchronous: ClassVar[bool | None] = True
