"""The tracker `my_plugin`."""

import csv
from collections.abc import Mapping
from pathlib import Path

from rlcore import Json, RunInfo, Tracker

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin(Tracker):
    """Writes `my_plugin.csv`: a line `step,value` for each step that has the metric."""

    def __init__(self, config: MyPluginConfig) -> None:
        self._metric = config.metric
        self._file = Path()

    def start(self, run: RunInfo) -> None:
        """A resumed run takes the steps after `run.step` again, so their lines go."""
        self._file = run.folder / "my_plugin.csv"
        kept: list[list[str]] = []
        if self._file.exists():
            with self._file.open(newline="") as file:
                kept = [line for line in csv.reader(file) if int(line[0]) <= run.step]
        with self._file.open("w", newline="") as file:
            csv.writer(file).writerows(kept)

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """A step may lack the metric."""
        if self._metric in metrics:
            with self._file.open("a", newline="") as file:
                csv.writer(file).writerow([step, metrics[self._metric]])
