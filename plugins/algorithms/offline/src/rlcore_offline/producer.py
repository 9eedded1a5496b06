"""The producer for responses that the data give. Nothing is generated."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rlcore import (
    Cursor,
    DataError,
    GenerationStatus,
    Group,
    Json,
    Producer,
    ProducerContext,
    Prompt,
    Rollout,
    RunConfig,
    Sample,
    check_metadata,
)
from rlcore_offline.config import OfflineConfig
from rlcore_offline.responses import EncodedResponse, ResponseEncoder
from rlcore_toolkit import sample_metrics

UNFIT = "unfit_prompt"
"""Why a prompt is left out, in `rollout/groups_dropped/…`."""

_log = logging.getLogger(__name__)


def offline_producer(config: OfflineConfig, context: ProducerContext) -> Producer:
    """The producer of a run."""
    encoder = ResponseEncoder.of(context.encoder.tokenizer, context.run)
    return OfflineProducer(context.run, context.cursor, encoder)


@dataclass(eq=False)
class OfflineProducer:
    """Takes the responses of `prompts_per_step` prompts for each step, in the cursor's order.

    A group holds the responses to one prompt: one to learn, or a chosen and a rejected one.
    """

    samples = False
    settings: RunConfig
    cursor: Cursor
    encoder: ResponseEncoder
    next_group: int = 0

    def published(self, version: int) -> None:
        """Nothing to do: rollouts do not depend on the weights."""

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        """Within, the engines take up `version`."""
        yield

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Nothing to do: between two rollouts nothing is in progress."""
        yield

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`."""
        for step in range(done + 1, steps + 1):
            yield self.rollout(step)

    def state(self) -> dict[str, Json]:
        """The cursor as JSON."""
        return {"cursor": self.cursor.state(), "next_group": self.next_group}

    def load(self, state: Mapping[str, Json]) -> None:
        """Go on where `state` was taken. Raises `CheckpointError` where the data are not the same."""
        self.cursor.load(state["cursor"])
        self.next_group = int(state["next_group"])

    def rollout(self, step: int) -> Rollout:
        """The groups of `step`. A prompt that cannot be encoded is replaced by the next one."""
        begin = time.perf_counter()
        count, groups, dropped = self.settings.data.prompts_per_step, list[Group](), 0
        while len(groups) < count:  # it ends: the first prompts of each set were checked before the run
            groups_taken = [self._group(*taken) for taken in self.cursor.take(count - len(groups))]
            groups += [group for group in groups_taken if group is not None]
            dropped += groups_taken.count(None)
        samples = [sample for group in groups for sample in group.samples]
        metrics = sample_metrics(samples) | {
            "rollout/samples": len(samples),
            "rollout/groups": len(groups),
            "rollout/groups_dropped": dropped,
            **({f"rollout/groups_dropped/{UNFIT}": dropped} if dropped else {}),
            **self.cursor.metrics(),
            "time/rollout_s": time.perf_counter() - begin,
        }
        return Rollout(step=step, version=step - 1, groups=tuple(groups), metrics=metrics)

    def _group(self, prompt: Prompt, epoch: int) -> Group | None:
        group_id = self.next_group
        self.next_group += 1
        try:
            check_metadata([prompt], self.settings.data.metadata_columns)
            samples = self._samples(group_id, prompt)
        except DataError as error:
            _log.warning("%s It is left out.", error)
            return None
        return Group(group_id=group_id, prompt=prompt, samples=samples, epoch=epoch)

    def _samples(self, group_id: int, prompt: Prompt) -> tuple[Sample, ...]:
        return tuple(
            _sample(response, prompt, group_id, index)
            for index, encoded in enumerate(self.encoder.encode_all(prompt))
            for response in encoded
        )


def _sample(response: EncodedResponse, prompt: Prompt, group_id: int, index: int) -> Sample:
    return Sample(
        prompt=prompt,
        prompt_ids=response.prompt_ids,
        group_id=group_id,
        index=index,
        rollout_id=f"{group_id}.{index}",
        response_ids=response.response_ids,
        loss_mask=response.loss_mask,
        status=GenerationStatus.TRUNCATED if response.truncated else GenerationStatus.COMPLETED,
    )
