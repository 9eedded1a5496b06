"""The state that a run begins with: the first one, or that of a checkpoint that fits."""

from pathlib import Path
from typing import Any

from rlcore.api.errors import CheckpointError
from rlcore.checkpoint.folder import newest_intact
from rlcore.preparation.prepared import Prepared
from rlcore.preparation.run_folder import CHECKPOINTS
from rlcore.preparation.run_state import RunState


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
    """The state of a new run."""
    return RunState(step=0, version=0, producer={}, model=_identity(prepared))


def resumed_state(prepared: Prepared, checkpoint: Path) -> RunState:
    """The state in `checkpoint`. Raises `CheckpointError` if it no longer fits the run."""
    state = RunState.read(checkpoint)
    model = _identity(prepared)
    # The trainer would find out only after its start, by a tensor of another shape.
    for key in sorted(set(model) | set(state.model)):
        if model.get(key) != state.model.get(key):
            raise CheckpointError(
                f"{checkpoint}: its model has {key} {state.model.get(key)!r}, and the run's model "
                f"{model.get(key)!r}."
            )
    if state.step >= prepared.last_step:
        run, producer, more = prepared.resolved.run, prepared.resolved.producer, list[str]()
        offered = producer.config.last_step()
        if run.steps <= state.step:
            more.append("raise --epochs" if run.epochs else f"raise --steps above {state.step}")
        if offered is not None and offered <= state.step:
            more.append(f"give the producer {producer.name!r} more rollouts")
        raise CheckpointError(
            f"{checkpoint}: the run has already done {state.step} steps, and it is to end after "
            f"{prepared.last_step}; to go on, {' and '.join(more)}."
        )
    return state


def _identity(prepared: Prepared) -> dict[str, Any]:
    keys = ("architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return {key: prepared.hf_config.get(key) for key in keys} | {"dtype": prepared.model.dtype}
