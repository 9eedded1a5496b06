"""Between checkpoints and Hugging Face directories, one tensor at a time.

The model is built on the meta device: it says the names, and where each tensor lies. Values are read when
their turn comes, so host memory holds one tensor (and its counterpart), however large the model is.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore import (
    COMPLETE_MARKER,
    DTYPE_NAMES,
    CheckpointError,
    ConversionReport,
    ModelSpec,
    ProgressCallback,
    SavedWeights,
    check_weights,
    write_atomically,
)
from rlcore_megatron.config import MTP
from rlcore_megatron.shares import Done, ToDist, ToHf, one_rank, run_shares

if TYPE_CHECKING:
    from rlcore import PluginFile

WEIGHTS = "weights"
"""The folder of the weights in a directory that `to_dist` made."""

MAX_SHARD_BYTES = 5 * 1024**3
MAX_PIECE_BYTES = 1024**3
"""Of a layer's experts, what a checkpoint has in one piece: it is in memory at once when it is converted."""


def is_dist(path: Path) -> bool:
    """Whether `path` is a directory that `to_dist` made."""
    return (path / WEIGHTS).is_dir() and (path / COMPLETE_MARKER).is_file()


def to_hf(
    source: SavedWeights,
    out: Path,
    advance: ProgressCallback,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    ranks: int = 1,
    plugin_files: Sequence[PluginFile] = (),
) -> ConversionReport:
    """Write the new directory `out`, as transformers and engines load it, in the dtype of the run.

    Config, tokenizer, chat template and generation config come from `source.spec.path`. The directory
    appears whole or not at all; CheckpointError where it exists, does not fit on the disk, or `source` is
    damaged or of another model. `ranks`: processes that share the files (no more than there are files), which
    are the same to the last bit whatever their number. `plugin_files`: loaded here, and needed there as well.
    """
    _check_new(out)
    with one_rank():
        from rlcore_megatron.mcore.mtp import is_in_checkpoint
        from rlcore_megatron.mcore.streaming import Shape
        from rlcore_toolkit import plan_shards, write_shard_index

        spec = _with_mtp(source.spec, is_in_checkpoint(source.folder))
        shape = Shape.of(spec)
        files = plan_shards((entry for _, entry in shape.plan()), max_shard_bytes)
        total = sum(file.nbytes for file in files)
        _check_space(out, total)
        with write_atomically(out, marked=False) as folder:
            job = ToHf(spec=spec, weights=source.folder, folder=folder, shards=files)
            done = run_shares(
                job, shape, min(ranks, len(files)), lambda more: advance(more, total), plugin_files
            )
            write_shard_index(folder, files)
            return _complete(folder, spec, done)


def to_dist(
    spec: ModelSpec,
    out: Path,
    advance: ProgressCallback,
    ranks: int = 1,
    plugin_files: Sequence[PluginFile] = (),
    max_piece_bytes: int = MAX_PIECE_BYTES,
) -> ConversionReport:
    """Write the new directory `out`: the weights of a Hugging Face directory as `torch_dist`.

    Any parallel layout reads its part of them alone (`--weights OUT`). Errors as of `to_hf`; ModelError where
    the directory is incomplete. `ranks`: processes that share the tensors, each with files of its own.
    `plugin_files` as of `to_hf`. `max_piece_bytes`: larger layers of experts are written in several pieces.
    """
    _check_new(out)
    check_weights(Path(spec.path))
    with one_rank():
        from rlcore_megatron.mcore.mtp import is_in_directory
        from rlcore_megatron.mcore.streaming import Shape, finish_weights

        spec = _with_mtp(spec, is_in_directory(Path(spec.path), spec.bridge))
        shape = Shape.of(spec)
        total = sum(shape.sizes.values())
        _check_space(out, total)
        with write_atomically(out) as folder:
            weights = folder / WEIGHTS
            weights.mkdir()
            job = ToDist(spec=spec, folder=weights, piece_bytes=max_piece_bytes)
            done = run_shares(job, shape, ranks, lambda more: advance(more, total), plugin_files)
            finish_weights(weights, [share.written for share in done if share.written])
            return _complete(folder, spec, done)


def _with_mtp(spec: ModelSpec, is_there: bool) -> ModelSpec:
    """`spec` with its layer for multi-token prediction, where the weights have one."""
    return replace(spec, fields={**spec.fields, MTP: 1}) if is_there else spec


def _complete(folder: Path, spec: ModelSpec, done: Sequence[Done]) -> ConversionReport:
    """Add what is not weights, and the report of all shares."""
    from rlcore_megatron.mcore.weights import carry

    report = ConversionReport()
    for share in done:
        report.add(share.report)
    carry(Path(spec.path), folder, DTYPE_NAMES[spec.dtype], mtp=MTP in spec.fields)
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
            f"{out}: needs {need / 1e9:.3g} GB, and {home} has {free / 1e9:.3g} GB free; free space or name "
            "a directory on another disk."
        )
