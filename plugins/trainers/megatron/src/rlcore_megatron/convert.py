"""Between checkpoints and Hugging Face directories, one tensor at a time.

The model is built on the meta device: it says the names, and where each tensor lies. Values are read when
their turn comes, so host memory holds one tensor (and its counterpart), however large the model is.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlcore import (
    COMPLETE_MARKER,
    DTYPE_NAMES,
    ConversionReport,
    ModelSpec,
    PluginFile,
    ProgressCallback,
    SavedWeights,
    check_weights,
    fp8_block,
    read_config,
    write_atomically,
)
from rlcore_megatron.config import MTP, OF_MTP
from rlcore_megatron.shares import Done, ToDist, ToHf, one_rank, run_shares
from rlcore_toolkit import MAX_SHARD_BYTES, carry_files, check_new, check_space

WEIGHTS = "weights"
"""The folder of the weights in a directory that `to_dist` made."""

MAX_PIECE_BYTES = 1024**3
"""How much of a layer's experts is one piece of a checkpoint: a conversion holds it in memory at once."""


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
    check_new(out)
    with one_rank():
        from rlcore_megatron.mcore.checkpoint.streaming import Shape, has_mtp_layer
        from rlcore_toolkit import plan_shards, write_shard_index

        spec = _with_mtp(source.spec, has_mtp_layer(source.folder))
        shape = Shape.of(spec)
        files = plan_shards((entry for _, entry in shape.plan()), max_shard_bytes)
        total = sum(file.nbytes for file in files)
        check_space(out, total)
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
    check_new(out)
    path = Path(spec.path)
    quantization = read_config(path, spec.path).get("quantization_config")
    # the bridge knows the files of other quantizations, or refuses them
    check_weights(path, shapes=not quantization or fp8_block(quantization) is not None)
    with one_rank():
        from rlcore_megatron.mcore.bridges.mtp import is_in_directory
        from rlcore_megatron.mcore.checkpoint.streaming import Shape, finish_weights

        spec = _with_mtp(spec, is_in_directory(Path(spec.path), spec.bridge))
        shape = Shape.of(spec)
        total = sum(shape.sizes.values())
        check_space(out, total)
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
    report = ConversionReport()
    for share in done:
        report.add(share.report)
    without = () if MTP in spec.fields else (OF_MTP,)
    carry_files(Path(spec.path), folder, DTYPE_NAMES[spec.dtype], without=without)
    report.write(folder)
    return report
