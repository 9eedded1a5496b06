"""The weights to convert: those of a run's checkpoint, or of a Hugging Face directory."""

from pathlib import Path

from rlcore.api.dtypes import DTYPE_OF_NAME
from rlcore.api.errors import CheckpointError, ModelError
from rlcore.api.part import ModelSpec, Part
from rlcore.api.roles import POLICY, policy_role
from rlcore.api.trainer import SavedWeights
from rlcore.checkpoint.folder import check_files, newest_complete
from rlcore.compose.models import read_config
from rlcore.compose.resolved import ModelChoice
from rlcore.preparation.run_folder import CHECKPOINTS, MODEL_DIR
from rlcore.preparation.run_state import RunState


def checkpoint_of(run: Path) -> Path:
    """The newest complete checkpoint of a run's folder; CheckpointError where there is none."""
    checkpoint = newest_complete(run / CHECKPOINTS)
    if checkpoint is None:
        raise CheckpointError(f"{run}: holds no complete checkpoint in {CHECKPOINTS}/.")
    return checkpoint


def of_checkpoint(checkpoint: Path, model: ModelChoice, policy: str = "") -> SavedWeights:
    """The policy of `checkpoint` (RUN/checkpoints/N, of a run of `model`). CheckpointError.

    `policy`: the name of one beside the run's own.
    """
    check_files(checkpoint)
    folder = checkpoint / policy_role(policy)
    if not folder.is_dir():
        names = sorted(one.name.removeprefix(f"{POLICY}.") for one in checkpoint.glob(f"{POLICY}.*"))
        expected = f"expected one of {', '.join(map(repr, names))}" if names else "but it has no further one"
        raise CheckpointError(f"--policy: found {policy!r}, {expected}, in {checkpoint}.")
    state = RunState.read(checkpoint)
    path = model.path or str(checkpoint.resolve().parents[1] / MODEL_DIR)
    spec = ModelSpec(path=path, bridge=model.bridge, dtype=str(state.model["dtype"]))
    return SavedWeights(spec=spec, folder=folder)


def of_model(path: Path, bridge: Part) -> ModelSpec:
    """The model in the Hugging Face directory `path`, in the dtype of its config.json. ModelError."""
    config = read_config(path, f"{path}")
    name = config.get("dtype", config.get("torch_dtype", "float32"))
    if name not in DTYPE_OF_NAME:
        raise ModelError(
            f"{path / 'config.json'}: found dtype {name!r}, expected one of {', '.join(DTYPE_OF_NAME)}."
        )
    return ModelSpec(path=str(path), bridge=bridge, dtype=DTYPE_OF_NAME[name])
