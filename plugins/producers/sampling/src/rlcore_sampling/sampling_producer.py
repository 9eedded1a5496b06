"""`SamplingProducer`: what both ways of making rollouts have, and their state."""

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing

from rlcore import Engines, Json, ProducerContext, Rollout
from rlcore_sampling.buffer import DataBuffer
from rlcore_sampling.pipeline import RolloutPipeline
from rlcore_sampling.prompt_queue import PromptQueue


class SamplingProducer(ABC):
    """Makes rollouts with engines: prompts in, scored and filtered groups out.

    The consumer loads each version of the weights after the first within `publication`.
    """

    samples = True
    """Whether its engines need the weights of every step."""

    def __init__(self, context: ProducerContext) -> None:
        self._run = run = context.run
        self._version = context.version
        self._engines = Engines(
            context.clients,
            context.encoder.tokenizer,
            run.serving.engine_concurrency,
            context_length=run.sampling.max_prompt_tokens + run.sampling.max_response_tokens,
        )
        # What is in progress, what came back, and a batch that is too old.
        self._buffer = DataBuffer(
            run.data.prompts_per_step
            * (run.asynchrony.max_staleness + 2 + math.ceil(run.asynchrony.over_sample))
        )
        self._queue = PromptQueue(context.cursor, self._buffer)
        self._pipeline = RolloutPipeline(
            run=run,
            encoder=context.encoder,
            generator=context.generator,
            rewards=context.rewards,
            filters=context.filters,
            queue=self._queue,
            baseline=context.baseline,
            vocabulary=context.vocabulary,
        )

    @abstractmethod
    def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`.

        Asking for one means that all earlier ones were trained on and their weights published. Synchronous
        runs generate nothing between two questions. Close it (`aclose`) to stop early: what was drawn and not
        handed over is in the buffer then.
        """

    async def rollout(self, step: int) -> Rollout:
        """The groups of one step, with the weights that the engines hold now."""
        async with aclosing(self.run(step - 1, step)) as rollouts:
            return await anext(rollouts)

    @abstractmethod
    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        """Within, the engines take up `version`; requests under way fare as `on_publish` says."""

    @abstractmethod
    def published(self, version: int) -> None:
        """The engines hold `version`: the consumer has trained on what it got."""

    @abstractmethod
    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Within, nothing is generated, and `state` holds all that was."""

    def state(self) -> dict[str, Json]:
        """Cursor and buffer as JSON: everything that was drawn and not handed over, and what comes next."""
        return self._queue.state()

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self._queue.load(state)
