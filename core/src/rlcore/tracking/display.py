"""What shows a run to whoever started it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rlcore.api.types import Json


class Display(Protocol):
    """The screen of a run, which the command brings."""

    def expect(self, steps: int) -> None:
        """The number of steps, once the data have decided it (`--epochs`)."""
        ...

    def phase(self, text: str) -> None:
        """Say what the run does now, before its first step or between steps."""
        ...

    def note(self, line: str) -> None:
        """Tell the user something about the run that is no error."""
        ...

    def step(self, row: Mapping[str, Json]) -> None:
        """The metrics of one step, its evaluation included; step 0 is the evaluation before training."""
        ...
