"""The producer of rollouts that nobody generates: the data give the responses."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from rlcore.config.run import RunConfig
from rlcore.data.cursors import cursor_of
from rlcore.data.responses import Given, ResponseEncoder
from rlcore.rollout.measure import Rollout, sample_metrics
from rlcore.types import GenerationStatus, Group, Json, Prompt, Sample


class GivenProducer:
    """Takes the responses of `prompts_per_step` prompts for each step, in the cursor's order.

    A group holds the responses to one prompt: one to learn, or a chosen and a rejected one.
    """

    samples = False

    def __init__(
        self,
        *,
        run: RunConfig,
        prompts: Sequence[Prompt],
        encoder: ResponseEncoder,
    ) -> None:
        self._run = run
        self._encoder = encoder
        self._cursor = cursor_of(prompts, run)
        self._next_group = 0

    def published(self, version: int) -> None:
        """The engines now hold `version`, of which nothing here depends."""

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        """Within, the engines take up `version`."""
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Between two rollouts nothing is under way."""
        yield

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`."""
        for step in range(done + 1, steps + 1):
            yield self.rollout(step)

    def state(self) -> dict[str, Json]:
        """The cursor as JSON."""
        return {"cursor": self._cursor.state(), "next_group": self._next_group}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self._cursor.load(state["cursor"])
        self._next_group = int(state["next_group"])

    def rollout(self, step: int) -> Rollout:
        """The groups of `step`. Raises `DataError` naming a prompt that cannot be encoded."""
        begin = time.perf_counter()
        taken = self._cursor.take(self._run.prompts_per_step)
        groups = [
            Group(group_id=number, prompt=prompt, samples=self._samples(number, prompt), epoch=epoch)
            for number, (prompt, epoch) in enumerate(taken, self._next_group)
        ]
        self._next_group += len(groups)
        samples = [sample for group in groups for sample in group.samples]
        metrics = sample_metrics(samples) | {
            "rollout/samples": len(samples),
            "rollout/groups": len(groups),
            **self._cursor.metrics(),
            "time/rollout_s": time.perf_counter() - begin,
        }
        return Rollout(step=step, version=step - 1, groups=tuple(groups), metrics=metrics)

    def _samples(self, group_id: int, prompt: Prompt) -> tuple[Sample, ...]:
        return tuple(
            _sample(given, prompt, group_id, index)
            for index, response in enumerate(prompt.responses)
            for given in self._encoder.encode(prompt, response)
        )


def _sample(given: Given, prompt: Prompt, group_id: int, index: int) -> Sample:
    return Sample(
        prompt=prompt,
        prompt_ids=given.prompt_ids,
        group_id=group_id,
        index=index,
        rollout_id=f"{group_id}.{index}",
        response_ids=given.response_ids,
        loss_mask=given.loss_mask,
        status=GenerationStatus.TRUNCATED if given.truncated else GenerationStatus.COMPLETED,
    )
