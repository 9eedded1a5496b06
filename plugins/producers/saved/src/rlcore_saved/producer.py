"""The producer for saved rollouts. Nothing is generated, and nothing is scored."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rlcore import DataError, Json, Producer, ProducerContext, Rollout
from rlcore_saved.batch_file import load_batch, read_about
from rlcore_saved.config import SavedConfig


def saved_producer(config: SavedConfig, context: ProducerContext) -> Producer:
    """The producer of a run. `DataError` where a file is of other policies than the run's."""
    files, expected = config.files(), [*context.run.policies]
    for file in files:
        if (found := read_about(file).get("policies", [])) != expected:
            raise DataError(
                f"{file}: has samples of the further policies {found}, expected those of the run, {expected}."
            )
    return SavedRollouts(files=files, vocabulary=context.vocabulary)


@dataclass(frozen=True, kw_only=True)
class SavedRollouts:
    """Step n trains on the n-th of `files`. `vocabulary`: of the model; tokens must be below it."""

    files: Sequence[Path]
    vocabulary: int | None

    samples = False

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`."""
        for step in range(done + 1, steps + 1):
            yield self._rollout(step)

    @asynccontextmanager
    async def publication(self, version: int) -> AsyncIterator[None]:
        """There are no engines."""
        yield

    def published(self, version: int) -> None:
        """There are no engines."""

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Nothing is under way."""
        yield

    def state(self) -> dict[str, Json]:
        """The step says which file is next."""
        return {}

    def load(self, state: Mapping[str, Json]) -> None:
        """Does nothing: see `state`."""

    def _rollout(self, step: int) -> Rollout:
        """The rollout of a step. Tokens that other weights sampled count as stale, unlike when saved."""
        begin = time.perf_counter()
        file = self.files[step - 1]
        about, batch = read_about(file), load_batch(file)
        highest = int(batch.tokens.max()) if len(batch.tokens) else 0
        if self.vocabulary is not None and highest >= self.vocabulary:
            raise DataError(
                f"{file}: has the token {highest}, and the model a vocabulary of {self.vocabulary}: it is "
                "not of this model."
            )
        # Each step trains on a file, and so adds a version.
        version = step - 1
        fresh = batch.per_token["fresh"]
        batch = batch.with_columns(
            per_token={"fresh": fresh if about["version"] == version else torch.zeros_like(fresh)}
        )
        metrics = {**about["metrics"], "time/rollout_s": time.perf_counter() - begin}
        return Rollout(step=step, version=version, groups=(), metrics=metrics, batch=batch)
