"""Core's own producers."""

from __future__ import annotations

from rlcore.api.config import Config
from rlcore.api.producer import Producer, ProducerContext
from rlcore.data.prompt_tokenizer import PromptTokenizer
from rlcore.data.responses import ResponseEncoder
from rlcore.rollout.asynchronous import AsynchronousRollouts
from rlcore.rollout.offline import OfflineProducer
from rlcore.rollout.sampling_producer import SamplingProducer
from rlcore.rollout.synchronous import SynchronousRollouts


def synchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `synchronous`: generates while the trainer waits."""
    return SamplingProducer(SynchronousRollouts, **vars(context))


def asynchronous_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `asynchronous`: generates while the trainer works."""
    return SamplingProducer(AsynchronousRollouts, **vars(context))


def offline_producer(config: Config, context: ProducerContext) -> Producer:
    """The producer `offline`: takes the responses of the data."""
    sampling = context.run.sampling
    prompts = PromptTokenizer(context.encoder.tokenizer, sampling.max_prompt_tokens)
    encoder = ResponseEncoder(prompts, sampling.max_response_tokens)
    return OfflineProducer(run=context.run, cursor=context.cursor, encoder=encoder)
