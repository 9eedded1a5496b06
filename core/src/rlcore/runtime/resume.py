"""Where a run begins: at its first step, or at a checkpoint that fits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.api.errors import CheckpointError
from rlcore.checkpoint.folder import newest_intact
from rlcore.runtime.prepared import Prepared
from rlcore.runtime.provenance import fingerprints, versions
from rlcore.runtime.run_folder import CHECKPOINTS
from rlcore.runtime.state import RunState


def newest_checkpoint(run_dir: Path) -> tuple[Path | None, str | None]:
    """The newest intact checkpoint of a run, and a note where the run goes on from less than it had saved.

    None where the run was ended before its first checkpoint: it starts anew. Raises `CheckpointError` where
    all checkpoints are damaged.
    """
    checkpoint, errors = newest_intact(run_dir / CHECKPOINTS)
    if checkpoint is not None:
        faults = " ".join(map(str, errors))
        return checkpoint, f"{faults} So the run goes on from step {checkpoint.name}." if errors else None
    if errors:
        raise CheckpointError(" ".join(map(str, errors)))
    return None, f"{run_dir} holds no complete checkpoint, so the run starts anew."


def first_state(prepared: Prepared) -> RunState:
    """Of a new run."""
    resolved = prepared.resolved
    return RunState(step=0, version=0, producer={}, model=_identity(prepared), data=fingerprints(resolved))


def resumed_state(prepared: Prepared, checkpoint: Path) -> RunState:
    """Of `checkpoint`. Raises `CheckpointError` where it fits the run no more."""
    state = RunState.read(checkpoint)
    model = _identity(prepared)
    for key in sorted(set(model) | set(state.model)):
        if model.get(key) != state.model.get(key):
            raise CheckpointError(
                f"{checkpoint}: its model has {key} {state.model.get(key)!r}, and the run's model "
                f"{model.get(key)!r}."
            )
    if state.step >= prepared.resolved.run.steps:
        raise CheckpointError(
            f"{checkpoint}: already at step {state.step} of {prepared.resolved.run.steps}; "
            "raise --steps to go on."
        )
    for name, now in versions(prepared.resolved).items():
        if now.startswith("sha256:") and state.versions.get(name, now) != now:
            raise CheckpointError(f"{checkpoint}: the content of the {name} has changed since.")
    for path, now in fingerprints(prepared.resolved).items():
        if state.data.get(path, now) != now:
            raise CheckpointError(
                f"{path}: its content has changed since the run was started, and the run's place in it means "
                "nothing now; bring the old file back, or start a new run."
            )
    return state


def _identity(prepared: Prepared) -> dict[str, Any]:
    keys = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return {key: prepared.hf_config.get(key) for key in keys} | {"dtype": prepared.model.dtype}
