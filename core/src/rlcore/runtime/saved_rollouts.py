"""Rollouts as the tensors that training reads, kept in the run's folder."""

from __future__ import annotations

from pathlib import Path

from rlcore.api.batch import TrainBatch
from rlcore.api.producer import Rollout
from rlcore.learning.batch_file import save_batch

ROLLOUTS = "rollouts"
"""The folder of saved rollouts in a run's folder."""


def save_rollout(run_dir: Path, rollout: Rollout, batch: TrainBatch) -> None:
    """Write `batch`, made from `rollout`, as `rollouts/STEP.safetensors`."""
    metrics = {name: value for name, value in rollout.metrics.items() if not name.startswith("time/")}
    save_batch(
        batch,
        run_dir / ROLLOUTS / f"{rollout.step}.safetensors",
        {"step": rollout.step, "version": rollout.version, "metrics": metrics},
    )
