"""The tracker `tensorboard`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore import Json, RunInfo, Sample, Tracker
from rlcore_tensorboard.config import TensorboardConfig
from rlcore_toolkit import SampleView, require_packages

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

FOLDER = "tensorboard"


class Tensorboard(Tracker):
    """Writes event files."""

    def __init__(self, config: TensorboardConfig) -> None:
        """Raises `MissingPackageError` without tensorboardX or matplotlib."""
        require_packages("--tracker tensorboard", "rlcore-tensorboard[writer]", "tensorboardX", "matplotlib")
        self._config = config
        self._writer: SummaryWriter

    def start(self, run: RunInfo) -> None:
        """Hides what a resumed run had written of later steps."""
        from tensorboardX import SummaryWriter

        folder = Path(self._config.directory) if self._config.directory else run.folder / FOLDER
        self._writer = SummaryWriter(
            str(folder), purge_step=run.step + 1 if run.step else None, flush_secs=self._config.flush_every
        )
        settings = json.dumps(dict(run.settings), indent=1, ensure_ascii=False)
        self._writer.add_text("settings", _verbatim(settings), run.step)

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        """A scalar for each number."""
        for name, value in metrics.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(name, value, step)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        """The first answers of each set as text, and a picture of its rewards and lengths."""
        for name, of_set in samples.items():
            self._show(name, SampleView(of_set), step)

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        """Histograms of the rewards and of the lengths; of a saved rollout, what an evaluated set has."""
        view = SampleView(samples)
        for name, values in view.distributions.items():
            self._writer.add_histogram(f"distribution/{name}", values, step)
        if view.saved:
            self._show("rollout", view, step)

    def end(self, reason: str) -> None:
        """Everything is on the disk afterwards."""
        self._writer.close()

    def _show(self, name: str, view: SampleView, step: int) -> None:
        if view.distributions:
            self._writer.add_figure(f"pictures/{name}", view.figure(), step)
        for number, row in enumerate(view.rows(self._config.samples)):
            values = zip(view.COLUMNS, row, strict=True)
            text = "\n".join(f"{column}: {_shown(value)}" for column, value in values)
            self._writer.add_text(f"samples/{name}/{number}", _verbatim(text), step)


def _shown(value: Json) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _verbatim(text: str) -> str:
    """Markdown that is shown as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())
