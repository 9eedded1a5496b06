"""The live table. Imported only where there is a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from rlcore.api.types import Json
from rlcore.tracking.columns import Column, cells
from rlcore.tracking.curve import MARKS

SHOWN_STEPS = 12
REFRESHES_PER_SECOND = 4
TRAINING = "Training"


class LiveScreen:
    """The last steps as a table, above a progress bar; phases of the start stay above it as lines."""

    def __init__(self, stream: TextIO, steps: int, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._console = Console(file=stream)
        self._rows: deque[tuple[int, list[str]]] = deque(maxlen=SHOWN_STEPS)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
        )
        self._task = self._progress.add_task("Starting", total=steps)
        self._phase: tuple[str, float] | None = None
        self._live = Live(
            get_renderable=self._render, console=self._console, refresh_per_second=REFRESHES_PER_SECOND
        )
        self._live.start()

    @property
    def width(self) -> int:
        """Characters in a line of the terminal."""
        return self._console.width

    def expect(self, steps: int) -> None:
        """So many steps are the whole bar."""
        self._progress.update(self._task, total=steps)

    def phase(self, text: str) -> None:
        """Show what happens now; the phase before it becomes a line with its time."""
        self._end_phase()
        self._phase = (text, time.monotonic())
        self._progress.update(self._task, description=text)

    def step(self, row: Mapping[str, Json]) -> None:
        """Add a row to the table."""
        self._end_phase()
        self._rows.append((row["step"], cells(row, self._columns)))
        self._progress.update(self._task, completed=row["step"], description=TRAINING)

    def print(self, line: str) -> None:
        """One line, below everything else once the screen is closed."""
        self._console.print(_colored(line), soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()

    def _end_phase(self) -> None:
        if self._phase is not None:
            text, begin = self._phase
            seconds = f" {time.monotonic() - begin:.1f} s"
            self._console.print(Text.assemble(("✓ ", "green"), text, (seconds, "dim")))
            self._phase = None

    def _render(self) -> RenderableType:
        return Group(self._table(), self._progress) if self._rows else self._progress

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
        for title in ("step", *(column.title for column in self._columns)):
            table.add_column(title, justify="right", no_wrap=True)
        for step, texts in self._rows:
            table.add_row(str(step), *texts)
        return table


def _colored(line: str) -> Text:
    text = Text(line)
    text.highlight_regex("[\u2801-\u28ff]", "cyan")
    text.highlight_regex(f"[{MARKS}]", "bold green")
    return text
