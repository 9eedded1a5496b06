"""Rollouts that a run has saved, as the tensors that training reads, and training from them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rlcore.api.batch import TrainBatch
from rlcore.api.errors import DataError
from rlcore.api.producer import Rollout
from rlcore.api.types import Json
from rlcore.learning.batch_file import load_batch, read_about, save_batch
from rlcore.learning.minibatch import assign_minibatches

ROLLOUTS = "rollouts"
"""The folder of saved rollouts in a run's folder."""

_SUFFIX = ".safetensors"


def save_rollout(run_dir: Path, rollout: Rollout, batch: TrainBatch) -> None:
    """Write `batch`, made from `rollout`, as `rollouts/STEP.safetensors`."""
    metrics = {name: value for name, value in rollout.metrics.items() if not name.startswith("time/")}
    save_batch(
        batch,
        run_dir / ROLLOUTS / f"{rollout.step}{_SUFFIX}",
        {"step": rollout.step, "version": rollout.version, "metrics": metrics},
    )


def rollout_files(folder_name: str) -> tuple[Path, ...]:
    """The files that `--rollouts` names, in the order of their steps. Raises `DataError`."""
    asked, path = f"--rollouts {folder_name}", Path(folder_name)
    folder = path / ROLLOUTS if (path / ROLLOUTS).is_dir() else path
    if not folder.is_dir():
        raise DataError(f"{asked}: no such folder.")
    files = {int(file.stem): file for file in folder.glob(f"*{_SUFFIX}") if file.stem.isdecimal()}
    if not files:
        raise DataError(
            f"{asked}: holds no saved rollouts; a run writes them to RUN/{ROLLOUTS} with "
            "--save-rollouts-every."
        )
    for file in files.values():
        read_about(file)
    return tuple(files[step] for step in sorted(files))


@dataclass(frozen=True, kw_only=True)
class SavedRollouts:
    """A producer that samples nothing: step n trains on the n-th of `files`, and the last one ends the run.

    `minibatches`: optimizer steps for each file. `vocabulary`: size of the model's; tokens must be below it.
    """

    files: Sequence[Path]
    minibatches: int
    vocabulary: int

    samples = False

    async def run(self, done: int, steps: int) -> AsyncGenerator[Rollout, None]:
        """Rollouts of the steps `done` + 1 to `steps`, or to the last file."""
        for step in range(done + 1, min(steps, len(self.files)) + 1):
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
        if len(batch.tokens) and int(batch.tokens.max()) >= self.vocabulary:
            raise DataError(
                f"{file}: has the token {int(batch.tokens.max())}, and the model a vocabulary of "
                f"{self.vocabulary}: it is not of this model."
            )
        # Each step trains on a file, and so adds a version.
        version = step - 1
        fresh = batch.per_token["fresh"]
        batch = batch.with_columns(
            per_token={"fresh": fresh if about["version"] == version else torch.zeros_like(fresh)},
            per_sample={"minibatch": assign_minibatches(batch.per_sample["rollout"], self.minibatches)},
        )
        metrics = {**about["metrics"], "time/rollout_s": time.perf_counter() - begin}
        return Rollout(step=step, version=version, groups=(), metrics=metrics, batch=batch)
