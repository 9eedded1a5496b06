"""From a checkpoint to a Hugging Face directory, one tensor at a time."""

from itertools import chain
from pathlib import Path

from rlcore import ConversionReport, ProgressCallback, SavedWeights
from rlcore_fsdp.build import empty_model
from rlcore_fsdp.checkpoint import SavedModel
from rlcore_fsdp.config import DRAFT_LAYERS
from rlcore_toolkit import SafetensorsFiles, TensorEntry, WeightNames, check_new, write_directory


def to_hf(source: SavedWeights, out: Path, advance: ProgressCallback) -> ConversionReport:
    """Write the new directory `out`, in the dtype of `source.spec`. CheckpointError."""
    check_new(out)
    spec, saved = source.spec, SavedModel(source.folder)
    model = empty_model(spec.path, spec.dtype)
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    saved.check({name: tuple(tensor.shape) for name, tensor in state.items()}, False)
    given = SafetensorsFiles.of(Path(spec.path))
    names = WeightNames(model, given.names)
    writing = names.writing(state.keys())
    carried = [(name, given.read(name)) for name in names.carried]  # mapped, not in memory
    entries = [
        TensorEntry(name, tuple(t.shape), t.dtype)
        for name, t in (*writing.tensors(lambda name: state[name].to("meta")), *carried)
    ]
    tensors = writing.tensors(lambda name: saved.read(f"weight/{name}").to(state[name].dtype))
    return write_directory(
        Path(spec.path), out, entries, chain(tensors, carried), spec.dtype, advance, without=DRAFT_LAYERS
    )
