"""A train batch as a safetensors file, with JSON about it in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.producer import Rollout
from rlcore.api.types import Json
from rlcore.disk import replace_file

ABOUT, FORMAT = "rlcore", 1
"""The key of rlcore's JSON in the header, and its `format`."""
ROLLOUTS = "rollouts"
"""The folder of saved rollouts in a run's folder."""

_COLUMNS = ("per_token", "per_sample", "per_input")
_PLAIN = ("tokens", "prompt_lengths", "response_lengths")


def named_tensors(batch: TrainBatch) -> dict[str, Tensor]:
    """All tensors by name; those of columns as `per_token.NAME`, `per_sample.NAME`, `per_input.NAME`."""
    tensors = {name: getattr(batch, name) for name in _PLAIN}
    for kind in _COLUMNS:
        tensors |= {f"{kind}.{name}": tensor for name, tensor in getattr(batch, kind).items()}
    return tensors


def save_batch(batch: TrainBatch, path: Path, about: Mapping[str, Json] | None = None) -> None:
    """Write `named_tensors`. The file appears whole or not at all. Raises CheckpointError."""
    # safetensors refuses views with gaps.
    whole = {name: tensor.contiguous() for name, tensor in named_tensors(batch).items()}
    with replace_file(path) as draft:
        safetensors.torch.save_file(whole, draft, {ABOUT: json.dumps({"format": FORMAT, **(about or {})})})


def save_rollout(run_dir: Path, rollout: Rollout, batch: TrainBatch) -> None:
    """Write `batch`, made from `rollout`, as `rollouts/STEP.safetensors`."""
    metrics = {name: value for name, value in rollout.metrics.items() if not name.startswith("time/")}
    save_batch(
        batch,
        run_dir / ROLLOUTS / f"{rollout.step}.safetensors",
        {"step": rollout.step, "version": rollout.version, "metrics": metrics},
    )
