"""From a checkpoint to a Hugging Face directory, one tensor at a time."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from rlcore import DTYPE_NAMES, ConversionReport, ProgressCallback, SavedWeights, write_atomically
from rlcore_fsdp.build import empty_model
from rlcore_fsdp.checkpoint import SavedModel
from rlcore_fsdp.config import DRAFT_LAYERS
from rlcore_fsdp.files import WeightFiles
from rlcore_fsdp.names import WeightNames
from rlcore_toolkit import (
    TensorEntry,
    carry_files,
    check_new,
    check_space,
    plan_shards,
    write_shard_index,
    write_shards,
)

MAX_SHARD_BYTES = 5 * 1024**3


def to_hf(
    source: SavedWeights, out: Path, advance: ProgressCallback, max_shard_bytes: int = MAX_SHARD_BYTES
) -> ConversionReport:
    """Write the new directory `out`, in the dtype of `source.spec`. CheckpointError."""
    check_new(out)
    spec, saved = source.spec, SavedModel(source.folder)
    model = empty_model(spec.path, spec.dtype)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    saved.check({name: tuple(tensor.shape) for name, tensor in state.items()}, False)
    given = WeightFiles(Path(spec.path))
    names = WeightNames(model, given.names)
    writing = names.writing(state.keys())
    carried = [(name, given.read(name)) for name in names.carried]  # mapped, not in memory
    plan = [
        TensorEntry(name, tuple(t.shape), t.dtype)
        for name, t in (*writing.tensors(lambda name: state[name].to("meta")), *carried)
    ]
    files = plan_shards(plan, max_shard_bytes)
    total = sum(file.nbytes for file in files)
    check_space(out, total)
    with write_atomically(out, marked=False) as folder:
        tensors = writing.tensors(lambda name: saved.read(f"weight/{name}").to(state[name].dtype))
        report = write_shards(folder, files, chain(tensors, carried), lambda more: advance(more, total))
        write_shard_index(folder, files)
        carry_files(Path(spec.path), folder, DTYPE_NAMES[spec.dtype], without=DRAFT_LAYERS)
        report.write(folder)
    return report
