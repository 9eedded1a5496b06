"""The producer of rollouts: prompts in, scored and filtered groups out."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from rlcore import (
    Cursor,
    Engines,
    Filter,
    GenerationClient,
    Generator,
    GroupScorer,
    Json,
    PromptEncoder,
    Rollout,
    RunConfig,
)
from rlcore_sampling.asynchronous import AsynchronousRollouts
from rlcore_sampling.buffer import DataBuffer
from rlcore_sampling.pipeline import RolloutPipeline
from rlcore_sampling.prompt_queue import PromptQueue
from rlcore_sampling.synchronous import SynchronousRollouts

Rollouts = SynchronousRollouts | AsynchronousRollouts
"""How rollouts are made: in turns with the consumer, or at the same time."""


class SamplingProducer:
    """Makes rollouts with engines.

    `version` is what the engines hold at the start; the consumer loads each later one within `publication`.
    """

    samples = True
    """Whether its engines need the weights of every step."""

    def __init__(
        self,
        rollouts: type[Rollouts],
        *,
        run: RunConfig,
        cursor: Cursor,
        encoder: PromptEncoder,
        clients: Sequence[GenerationClient],
        generator: Generator,
        rewards: GroupScorer,
        filters: Sequence[Filter] = (),
        version: int = 0,
        baseline: bool = False,
    ) -> None:
        """`rollouts`: how they are made.

        `baseline`: a greedy response is made beside each group, for its reward (`Input.GREEDY_REWARD`).
        """
        self._run = run
        length = run.sampling.max_prompt_tokens + run.sampling.max_response_tokens
        engines = Engines(clients, encoder.tokenizer, run.serving.engine_concurrency, context_length=length)
        # What is in progress, what came back, and a batch that is too old.
        buffer = DataBuffer(
            run.data.prompts_per_step
            * (run.asynchrony.max_staleness + 2 + math.ceil(run.asynchrony.over_sample))
        )
        self._queue = PromptQueue(cursor, buffer)
        pipeline = RolloutPipeline(
            run=run,
            encoder=encoder,
            generator=generator,
            rewards=rewards,
            filters=filters,
            queue=self._queue,
            baseline=baseline,
        )
        self._rollouts = rollouts(run, self._queue, engines, pipeline, version)

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`.

        Asking for one means that all earlier ones were trained on and their weights published. Synchronous
        runs generate nothing between two questions. Close it (`aclose`) to stop early: what was drawn and not
        handed over is in the buffer then.
        """
        async with aclosing(self._rollouts.run(done, steps)) as rollouts:
            async for rollout in rollouts:
                yield rollout

    async def rollout(self, step: int) -> Rollout:
        """The groups of one step, with the weights that the engines hold now."""
        async with aclosing(self.run(step - 1, step)) as rollouts:
            return await anext(rollouts)

    def publication(self, version: int) -> AbstractAsyncContextManager[None]:
        """Within, the engines take up `version`; requests under way fare as `on_publish` says."""
        return self._rollouts.publication(version)

    def published(self, version: int) -> None:
        """The engines hold `version`: the consumer has trained on what it got."""
        self._rollouts.published(version)

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Within, nothing is generated, and `state` holds all that was."""
        return self._rollouts.suspended()

    def state(self) -> dict[str, Json]:
        """Cursor and buffer as JSON: everything that was drawn and not handed over, and what comes next."""
        return self._queue.state()

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self._queue.load(state)
