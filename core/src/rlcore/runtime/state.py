"""The state of a run beside the model: JSON in every checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlcore.api.errors import CheckpointError
from rlcore.api.types import parse_json

FORMAT = 1
FILE = "state.json"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """`step` steps are done; engines hold weight version `version`; `producer` is the cursor and the buffer.

    `model`: what the checkpoint's weights are (sizes of its architecture, dtype); `data`: fingerprints of the
    files of its prompts; `versions`: of plugins and libraries (`rlcore.runtime.provenance`). All are compared
    at resume. `callbacks`: what each of them goes on with (`rlcore.runtime.callbacks`).
    """

    step: int
    version: int
    producer: Mapping[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write `folder/state.json`."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")

    @staticmethod
    def read(folder: Path) -> RunState:
        """Read `folder/state.json`; `CheckpointError` where it is missing, damaged or of another format."""
        path = folder / FILE
        try:
            data = parse_json(path.read_text())
            state = RunState(**data)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: not found, so {folder} is not a checkpoint of rlcore.") from None
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: not a run state ({error}).") from error
        if state.format != FORMAT:
            raise CheckpointError(f"{path}: format {state.format}, and this rlcore reads format {FORMAT}.")
        return state
