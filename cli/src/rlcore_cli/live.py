"""The live table. Imported only where there is a terminal."""

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
from rlcore_cli.columns import Column, cells, legend
from rlcore_cli.curve import MARKS

SHOWN_STEPS = 12
REFRESHES_PER_SECOND = 4
TRAINING = "Training"
SPEED_SECONDS = 6 * 3600.0
"""The ETA follows from the steps within this time.

It is long, because a single step may take many minutes.
"""


class LiveScreen:
    """The last steps as a table above a progress bar. The phases of the start stay as lines above.

    `steps`: 0 of an evaluation, which has no bar.
    """

    def __init__(self, stream: TextIO, steps: int, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._console = Console(file=stream)
        self._rows: deque[tuple[int, list[str]]] = deque(maxlen=SHOWN_STEPS)
        bar = (BarColumn(bar_width=None), MofNCompleteColumn())
        eta = (TextColumn("ETA", style="dim"), TimeRemainingColumn())
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *(bar if steps else ()),
            TimeElapsedColumn(),
            *(eta if steps else ()),
            console=self._console,
            speed_estimate_period=SPEED_SECONDS,
            expand=bool(steps),
        )
        self._task = self._progress.add_task("Starting", total=steps or None)
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
        """The number of steps of the whole bar."""
        self._progress.update(self._task, total=steps)

    def phase(self, text: str) -> None:
        """Show what happens now. The previous phase becomes a line with its duration."""
        self._end_phase()
        self._phase = (text, time.monotonic())
        self._progress.update(self._task, description=text)

    def step(self, row: Mapping[str, Json]) -> None:
        """Add a row to the table."""
        self._end_phase()
        texts = cells(row, self._columns)
        if any(texts):  # step 0 may have nothing to show
            self._rows.append((row["step"], texts))
        self._progress.update(self._task, completed=row["step"], description=TRAINING)

    def print(self, line: str) -> None:
        """Print a line. It appears below everything else when the screen is closed."""
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
        # below, a line where the terminal may echo Ctrl-C
        below = Group(self._progress, Text())
        if not self._rows:
            return below
        columns = self._fitting()
        return Group(self._table(columns), Text(legend(columns), style="dim"), below)

    def _fitting(self) -> Sequence[Column]:
        """The columns that fit the terminal. The last ones are left out first."""
        left = self._console.width - max(len("step"), *(len(str(step)) for step, _ in self._rows))
        for place, column in enumerate(self._columns):
            left -= 1 + max(len(column.title), *(len(texts[place]) for _, texts in self._rows))
            if left < 0:
                return self._columns[:place]
        return self._columns

    def _table(self, columns: Sequence[Column]) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold cyan")
        for title in ("step", *(column.title for column in columns)):
            table.add_column(title, justify="right", no_wrap=True)
        for step, texts in self._rows:
            table.add_row(str(step), *texts[: len(columns)])
        return table


def _colored(line: str) -> Text:
    text = Text(line)
    text.highlight_regex("[\u2801-\u28ff]", "cyan")
    text.highlight_regex(f"[{MARKS}]", "bold green")
    return text
