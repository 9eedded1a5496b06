"""What shows a run to whoever started it, and its summary at the end."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rlcore.api.types import Json

STOPPING = "Stopping what was started"
"""The last phase of a run."""


class Display(Protocol):
    """The screen of a run, which the command brings."""

    def expect(self, steps: int, folder: Path) -> None:
        """The number of steps, once the data have decided it (`--epochs`), and the folder of the run."""

    def phase(self, text: str) -> None:
        """Say what the run does now, before its first step or between steps."""

    def note(self, line: str) -> None:
        """Tell the user something about the run that is no error."""

    def step(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included; step 0 is the evaluation before training."""


@dataclass(frozen=True)
class Summary:
    """The summary of a run. `eval`: the score of each evaluated set.

    `exit_reason`: "completed", "sigterm", "interrupted", "terminated" or "failed"; or "NAME: why", if the
    callback NAME has ended the run.
    """

    run: str
    steps: int
    seconds: float
    eval: Mapping[str, float]
    exit_reason: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))
