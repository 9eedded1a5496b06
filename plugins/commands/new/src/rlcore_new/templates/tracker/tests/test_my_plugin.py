"""The tracker keeps what rlcore promises of trackers, and writes what it is told."""

from pathlib import Path

from rlcore import Part, RunInfo
from rlcore_testing.trackers import TrackerConformance

from rlcore_my_plugin.config import MyPluginConfig
from rlcore_my_plugin.tracker import MyPlugin


class TestMyPlugin(TrackerConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.tracker:MyPlugin",
        config=MyPluginConfig(metric="train/loss"),
    )


def told(folder: Path, first: int, last: int) -> list[str]:
    """The file after a run went on after step `first` and ended with `last`."""
    tracker = MyPlugin(MyPluginConfig(metric="loss"))
    tracker.start(RunInfo(folder=folder, settings={}, plugins={}, step=first))
    for step in range(first + 1, last + 1):
        tracker.metrics(step, {"loss": step / 2, "other": 0})
    tracker.metrics(last + 1, {"other": 0})
    return (folder / "my_plugin.csv").read_text().splitlines()


def test_each_step_with_the_metric_is_a_line(tmp_path: Path) -> None:
    assert told(tmp_path, 0, 3) == ["1,0.5", "2,1.0", "3,1.5"]


def test_a_resumed_run_writes_no_step_twice(tmp_path: Path) -> None:
    told(tmp_path, 0, 3)
    assert told(tmp_path, 1, 2) == ["1,0.5", "2,1.0"]
