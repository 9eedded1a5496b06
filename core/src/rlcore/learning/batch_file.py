"""A train batch as a safetensors file, with JSON about it in the header."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
from torch import Tensor

from rlcore.api.batch import TrainBatch
from rlcore.api.producer import Rollout
from rlcore.api.types import Json
from rlcore.checkpoint.disk import replace_file

ABOUT, FORMAT = "rlcore", 1
"""The key of rlcore's JSON in the header, and its `format`."""
ROLLOUTS = "rollouts"
"""The folder of saved rollouts in a run's folder."""

_PLAIN = ("tokens", "prompt_lengths", "response_lengths")


def named_tensors(batch: TrainBatch) -> dict[str, Tensor]:
    """All tensors by name; those of columns as `per_token.NAME`, `per_sample.NAME` and so on."""
    tensors = {name: getattr(batch, name) for name in _PLAIN}
    for per, table in batch.tables.items():
        tensors |= {f"per_{per}.{name}": tensor for name, tensor in table.items()}
    return tensors


def save_batch(batch: TrainBatch, path: Path, about: Mapping[str, Json] | None = None) -> None:
    """Write `named_tensors`, and JSON: `about`, the format, and the declarations of the `columns`.

    The file appears whole or not at all. Raises CheckpointError.
    """
    # safetensors refuses views with gaps.
    whole = {name: tensor.contiguous() for name, tensor in named_tensors(batch).items()}
    columns = {name: asdict(column) for name, column in batch.columns.items()}
    header = json.dumps({"format": FORMAT, "columns": columns, **(about or {})})
    with replace_file(path) as draft:
        safetensors.torch.save_file(whole, draft, {ABOUT: header})


def save_rollout(run_dir: Path, rollout: Rollout, batch: TrainBatch, policies: Iterable[str] = ()) -> None:
    """Write `batch`, made from `rollout`, as `rollouts/STEP.safetensors`. `policies`: those beside the run's
    own, by number.
    """
    metrics = {name: value for name, value in rollout.metrics.items() if not name.startswith("time/")}
    save_batch(
        batch,
        run_dir / ROLLOUTS / f"{rollout.step}.safetensors",
        {"step": rollout.step, "version": rollout.version, "metrics": metrics, "policies": [*policies]},
    )
