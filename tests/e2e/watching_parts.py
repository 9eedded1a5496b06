"""Plugin file: a tracker that notes what it is told, one that fails, and a callback."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from rlcore import Callback, Component, Config, Json, RunControl, RunInfo, Sample, Tracker, hookimpl


class NotesConfig(Config):
    file: str = Field(description="where the notes go")
    token: str = Field("", description="a secret")


class Notes(Tracker):
    """A line for each event."""

    def __init__(self, config: NotesConfig) -> None:
        self._file = Path(config.file)

    def note(self, *about: Json) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(about) + "\n")

    def start(self, run: RunInfo) -> None:
        self.note("start", run.step, run.settings["tracker.notes.token"], run.settings["lr"])

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        self.note("metrics", step, "train/loss" in metrics)

    def evaluation(self, step: int, samples: Mapping[str, Sequence[Sample]]) -> None:
        self.note("evaluation", step, {name: len(of_set) for name, of_set in samples.items()})

    def rollout(self, step: int, samples: Sequence[Sample]) -> None:
        self.note("rollout", step, len(samples))

    def checkpoint(self, step: int, folder: Path) -> None:
        self.note("checkpoint", step, (folder / "complete.json").is_file())

    def end(self, reason: str) -> None:
        self.note("end", reason)


class Failing(Tracker):
    """Has a fault at every step."""

    def __init__(self, config: Config) -> None:
        pass

    def metrics(self, step: int, metrics: Mapping[str, Json]) -> None:
        raise ConnectionError(f"nobody took step {step}")


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    yield Component(name="notes", factory=f"{__name__}:Notes", summary="notes", config=NotesConfig)
    yield Component(name="failing", factory=f"{__name__}:Failing", summary="raises")


class Halving(Callback):
    """Halves the learning rate after every second step, by a count of its own; asks for what is odd."""

    def __init__(self, config: Config) -> None:
        self._count = 0

    def after_step(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        self._count += 1
        return RunControl(
            lr_scale=0.5 ** (self._count // 2), evaluate=self._count == 1, save=self._count == 3
        )

    def after_evaluation(self, step: int, metrics: Mapping[str, Json]) -> RunControl:
        return RunControl(save=step == 1)

    def state(self) -> Json:
        return self._count

    def load(self, state: Json) -> None:
        self._count = state


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    yield Component(name="halving", factory=f"{__name__}:Halving", summary="halves the learning rate")
