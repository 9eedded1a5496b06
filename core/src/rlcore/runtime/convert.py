"""Between checkpoints and Hugging Face directories, one tensor at a time.

The model is built on the meta device: it says the names, and where each tensor lies. Values are read when
their turn comes, so host memory holds one tensor (and its counterpart), however large the model is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.checkpoint.folder import MARKER, newest_complete, read_marker, write_atomically
from rlcore.checkpoint.report import Report
from rlcore.errors import CheckpointError, ModelError
from rlcore.runtime.prepare import CHECKPOINTS
from rlcore.runtime.role_models import read_config
from rlcore.runtime.state import MODEL_DIR, RunState
from rlcore.runtime.weights_check import check_weights
from rlcore.runtime.worker import POLICY
from rlcore.spec import ModelSpec, Part

if TYPE_CHECKING:
    from rlcore.config.resolve import ModelChoice

WEIGHTS = "weights"
"""The folder of the weights in a directory that `to_dist` made."""

MAX_SHARD_BYTES = 5 * 1024**3
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}

Advance = Callable[[int, int], None]
"""Told the bytes that were written since the last call, and how many there will be in all."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Weights in a checkpoint, and the model that they are of."""

    spec: ModelSpec
    weights: Path


def checkpoint_of(run: Path) -> Path:
    """The newest complete checkpoint of a run's folder; CheckpointError where there is none."""
    found = newest_complete(run / CHECKPOINTS)
    if found is None:
        raise CheckpointError(f"{run}: holds no complete checkpoint in {CHECKPOINTS}/.")
    return found


def of_checkpoint(checkpoint: Path, model: ModelChoice) -> Source:
    """The policy of `checkpoint` (RUN/checkpoints/N, of a run of `model`). CheckpointError."""
    read_marker(checkpoint)
    state = RunState.read(checkpoint)
    path = model.path or str(checkpoint.resolve().parents[1] / MODEL_DIR)
    spec = ModelSpec(path=path, bridge=model.bridge, dtype=str(state.model["dtype"]))
    return Source(spec=spec, weights=checkpoint / POLICY)


def is_dist(path: Path) -> bool:
    """Whether `path` is a directory that `to_dist` made."""
    return (path / WEIGHTS).is_dir() and (path / MARKER).is_file()


def of_model(path: Path, bridge: Part) -> ModelSpec:
    """The model in the Hugging Face directory `path`, in the dtype of its config.json. ModelError."""
    config = read_config(path)
    name = config.get("dtype", config.get("torch_dtype", "float32"))
    if name not in DTYPES:
        raise ModelError(
            f"{path / 'config.json'}: found dtype {name!r}, expected one of {', '.join(DTYPES)}."
        )
    return ModelSpec(path=str(path), bridge=bridge, dtype=DTYPES[name])


def to_hf(source: Source, out: Path, advance: Advance, max_shard_bytes: int = MAX_SHARD_BYTES) -> Report:
    """Write the new directory `out`, as transformers and SGLang load it, in the dtype of the run.

    Config, tokenizer, chat template and generation config come from `source.spec.path`. The directory
    appears whole or not at all; CheckpointError where it exists, does not fit on the disk, or `source` is
    damaged or of another model.
    """
    _check_new(out)
    with _one_rank():
        from rlcore.checkpoint.safetensors_stream import entries, write_shards
        from rlcore.megatron.build import DTYPES as TORCH
        from rlcore.megatron.streaming import Shape
        from rlcore.megatron.weights import carry

        shape = Shape.of(source.spec)
        plan = entries(shape.export())
        total = sum(entry.nbytes for entry in plan)
        _check_space(out, total)
        with write_atomically(out, marked=False) as folder:
            tensors = shape.export(source.weights)
            report = write_shards(folder, plan, tensors, max_shard_bytes, lambda done: advance(done, total))
            carry(Path(source.spec.path), folder, str(TORCH[source.spec.dtype]).removeprefix("torch."))
            report.write(folder)
    return report


def to_dist(spec: ModelSpec, out: Path, advance: Advance) -> Report:
    """Write the new directory `out`: the weights of a Hugging Face directory as `torch_dist`.

    Any parallel layout reads its part of them alone (`--weights OUT`). Errors as of `to_hf`; ModelError where
    the directory is incomplete.
    """
    _check_new(out)
    check_weights(Path(spec.path))
    with _one_rank():
        from rlcore.megatron.build import DTYPES as TORCH
        from rlcore.megatron.streaming import Shape
        from rlcore.megatron.weights import carry

        shape = Shape.of(spec)
        _check_space(out, shape.nbytes)
        report = Report()
        with write_atomically(out) as folder:
            (folder / WEIGHTS).mkdir()
            shape.load_into(folder / WEIGHTS, report, lambda done: advance(done, shape.nbytes))
            carry(Path(spec.path), folder, str(TORCH[spec.dtype]).removeprefix("torch."))
            report.write(folder)
    return report


def _check_new(out: Path) -> None:
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a directory that does not.")


def _check_space(out: Path, need: int) -> None:
    home = next(parent for parent in out.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(home).free
    if free < need:
        raise CheckpointError(
            f"{out}: needs {need / 1e9:.1f} GB, and {home} has {free / 1e9:.1f} GB free; free space or name "
            "a directory on another disk."
        )


@contextmanager
def _one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    from rlcore import cpu

    cpu.install()
    from rlcore.megatron import parallel

    parallel.start(0, 1, "127.0.0.1", 0)
    try:
        yield
    finally:
        parallel.stop()
