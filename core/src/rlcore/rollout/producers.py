"""Core's own producers."""

from __future__ import annotations

from rlcore.api.config import Config
from rlcore.api.producer import Producer, ProducerContext
from rlcore.data.responses import ResponseEncoder
from rlcore.rollout.given import GivenProducer
from rlcore.rollout.produce import SamplingProducer
from rlcore.rollout.rounds import Rounds
from rlcore.rollout.stream import Stream


def rounds(config: Config, context: ProducerContext) -> Producer:
    """In turns with the consumer."""
    return SamplingProducer(Rounds, **vars(context))


def stream(config: Config, context: ProducerContext) -> Producer:
    """At the same time as the consumer."""
    return SamplingProducer(Stream, **vars(context))


def given(config: Config, context: ProducerContext) -> Producer:
    """What the data give."""
    encoder = ResponseEncoder(context.encoder, context.run.max_response_tokens)
    return GivenProducer(run=context.run, cursor=context.cursor, encoder=encoder)
