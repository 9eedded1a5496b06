"""The display of a run that nobody watches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rlcore.api.types import Json


class SilentDisplay:
    """A `rlcore.tracking.display.Display` that shows nothing."""

    def expect(self, steps: int, folder: Path) -> None:
        """Nothing."""

    def phase(self, text: str) -> None:
        """Nothing."""

    def note(self, line: str) -> None:
        """Nothing."""

    def step(self, row: Mapping[str, Json]) -> None:
        """Nothing."""
