"""Core's own producers."""

from __future__ import annotations

from rlcore.api.config import Config
from rlcore.api.producer import Producer, ProducerContext
from rlcore.rollout.asynchronous import AsynchronousRollouts
from rlcore.rollout.sampling_producer import SamplingProducer
from rlcore.rollout.synchronous import SynchronousRollouts


def synchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `synchronous`: generates while the trainer waits."""
    return SamplingProducer(SynchronousRollouts, **vars(context))


def asynchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `asynchronous`: generates while the trainer works."""
    return SamplingProducer(AsynchronousRollouts, **vars(context))
