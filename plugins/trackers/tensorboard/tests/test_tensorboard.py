"""The tracker `tensorboard`: what TensorBoard finds in the event files."""

import importlib.util
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore import MissingPackageError, RunInfo, Score
from rlcore.tracking.trackers import Trackers
from rlcore_tensorboard.config import TensorboardConfig
from rlcore_tensorboard.tracker import Tensorboard
from rlcore_testing.display import SilentDisplay
from rlcore_testing.samples import SCORED as SAMPLE


def track(folder: Path, *rows: dict[str, Any], step: int = 0, **config: Any) -> None:
    """A run that writes `rows`, and one answer after each."""
    trackers = Trackers({"tensorboard": Tensorboard(TensorboardConfig(**config))}, SilentDisplay())
    trackers.start(RunInfo(folder=folder, settings={"lr": 0.5}, plugins={}, step=step))
    for row in rows:
        trackers.metrics(row)
        trackers.evaluation(row["step"], {"easy": [SAMPLE, SAMPLE], "empty": []})
    trackers.end("completed")


def events(folder: Path) -> Iterator[Any]:
    """The events of all files, oldest file first: TFRecord, whose checksums are not looked at here."""
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted(folder.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime_ns):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, round(value.simple_value, 6))
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def texts(folder: Path) -> dict[str, str]:
    return {
        value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("tensor")
    }


def pictures(folder: Path) -> list[tuple[int, str]]:
    """Step and tag of each image, all of which are pictures."""
    found = [(event.step, value) for event in events(folder) for value in event.summary.value]
    images = [(step, value.tag, value.image) for step, value in found if value.HasField("image")]
    for _, _, image in images:
        assert image.encoded_image_string.startswith(b"\x89PNG")
        assert image.width > image.height > 100
    return [(step, tag) for step, tag, _ in images]


def test_numbers_are_scalars_and_settings_and_answers_are_texts(tmp_path: Path) -> None:
    track(
        tmp_path,
        {"step": 1, "train/loss": 0.25, "note": "x", "flag": True},
        {"step": 2, "train/loss": 3},
        samples=1,
    )
    folder = tmp_path / "tensorboard"
    assert scalars(folder) == [(1, "step", 1), (1, "train/loss", 0.25), (2, "step", 2), (2, "train/loss", 3)]
    found = texts(folder)
    assert set(found) == {"settings", "samples/easy/0"}
    assert '"lr": 0.5' in found["settings"]
    assert "    response: 2<1>" in found["samples/easy/0"].splitlines()
    assert pictures(folder) == [(1, "pictures/easy"), (2, "pictures/easy")]


def test_rewards_and_lengths_are_histograms_and_saved_rollouts_texts_and_pictures(tmp_path: Path) -> None:
    trackers = Trackers({"tensorboard": Tensorboard(TensorboardConfig())}, SilentDisplay())
    trackers.start(RunInfo(folder=tmp_path, settings={}, plugins={}, step=0))
    good = SAMPLE.but(response_ids=(1, 2, 3), score=Score(value=1.0))
    trackers.rollout(1, [SAMPLE, good, good])
    trackers.rollout(2, [good.but(extras={"advantages": (0.0,) * 3})])
    trackers.end("completed")
    folder = tmp_path / "tensorboard"
    found = {
        (event.step, value.tag): value.histo
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("histo")
    }
    reward = found[1, "distribution/reward"]
    assert (reward.num, reward.min, reward.max, reward.sum) == (3, 0.5, 1, 2.5)
    assert found[1, "distribution/response_tokens"].max == 3
    assert [name for name in texts(folder) if name != "settings"] == ["samples/rollout/0"]
    assert pictures(folder) == [(2, "pictures/rollout")]


def test_a_resumed_run_hides_the_steps_that_are_taken_again(tmp_path: Path) -> None:
    track(tmp_path, {"step": 3}, {"step": 4})
    track(tmp_path, {"step": 4}, step=3)
    found = list(events(tmp_path / "tensorboard"))
    starts = [event.step for event in found if event.session_log.status]
    assert starts[-1] == 4, "what TensorBoard drops from on"


def test_the_folder_may_be_another(tmp_path: Path) -> None:
    track(tmp_path / "run", {"step": 1}, directory=str(tmp_path / "logs"))
    assert scalars(tmp_path / "logs") == [(1, "step", 1)]


def test_without_the_writer_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"tensorboardX": True}.get)
    with pytest.raises(
        MissingPackageError, match=r": found no matplotlib; pip install 'rlcore-tensorboard\[writer\]'"
    ):
        Tensorboard(TensorboardConfig())
