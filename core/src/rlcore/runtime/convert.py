"""A checkpoint's policy as a Hugging Face directory."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.checkpoint.folder import read_marker
from rlcore.errors import CheckpointError
from rlcore.runtime.prepare import MODEL_DIR
from rlcore.runtime.state import RunState
from rlcore.runtime.worker import POLICY
from rlcore.spec import ModelSpec

if TYPE_CHECKING:
    from rlcore.config.resolve import Resolved


def convert(checkpoint: Path, out: Path, resolved: Resolved) -> None:
    """Write the policy of `checkpoint` (RUN/checkpoints/N, of the run `resolved`) to the new directory `out`.

    One process, whatever layout it was saved under; config and tokenizer come from the model that the run
    started from. `CheckpointError` where the checkpoint is not complete or `out` exists.
    """
    read_marker(checkpoint)
    state = RunState.read(checkpoint)
    if out.exists():
        raise CheckpointError(f"{out}: exists already; name a directory that does not.")

    from rlcore import cpu

    cpu.install()
    from rlcore.megatron import parallel
    from rlcore.megatron.role import Role
    from rlcore.megatron.weights import save_hf

    source = resolved.model.path or str(checkpoint.resolve().parents[1] / MODEL_DIR)
    spec = ModelSpec(path=source, bridge=resolved.model.bridge, dtype=str(state.model["dtype"]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parallel.start(0, 1, "127.0.0.1", port)
    try:
        role = Role(spec, None)
        role.load(checkpoint / POLICY)
        save_hf(role.built, source, out)
    finally:
        parallel.stop()
