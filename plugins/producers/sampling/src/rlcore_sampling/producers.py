"""The factories of the producers."""

from rlcore import Config, Producer, ProducerContext
from rlcore_sampling.asynchronous import AsynchronousRollouts
from rlcore_sampling.synchronous import SynchronousRollouts


def synchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `synchronous`: generates while the trainer waits."""
    return SynchronousRollouts(context)


def asynchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `asynchronous`: generates while the trainer works."""
    return AsynchronousRollouts(context)
