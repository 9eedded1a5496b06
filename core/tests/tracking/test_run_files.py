"""`metrics.jsonl` and the samples of an evaluation: what is written, kept and refused."""

import json
import math
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlcore import CheckpointError, GenerationStatus, Prompt, RewardStatus, RunInfo, Score, Span
from rlcore.tracking.run_files import (
    MetricsFile,
    RunFiles,
    read_metrics,
    restore_metrics,
    token_texts,
    write_lines,
)
from rlcore.tracking.trackers import Trackers
from rlcore_testing.display import SilentDisplay
from rlcore_testing.samples import sample_of


def info(folder: Path) -> RunInfo:
    return RunInfo(folder=folder, settings={}, plugins={}, step=0)


def write(path: Path, *steps: int, keep_step: int = 0) -> None:
    file = MetricsFile(path, keep_step=keep_step)
    for step in steps:
        file.write({"step": step, "train/loss": step / 2})
    file.close()


def steps(path: Path) -> list[int]:
    return [row["step"] for row in read_metrics(path)]


def test_each_step_is_one_flat_json_object(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1, 2)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 1.0}]


def test_a_row_can_be_read_before_the_file_is_closed(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl", keep_step=0)
    file.write({"step": 1})
    assert steps(tmp_path / "metrics.jsonl") == [1]
    file.close()


def test_resuming_removes_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 1, 2, 3)
    before = path.read_text().splitlines()
    write(path, 3, keep_step=2)
    assert path.read_text().splitlines() == before
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, 1)
    with path.open("a") as file:
        file.write('{"step": 2, "tra')
    assert steps(path) == [1]
    write(path, 2, keep_step=2)
    assert steps(path) == [1, 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b'"step": 2', b'"s\xf4ep": 2'),
        lambda text: text.replace(b'{"step": 2', b'["step": 2'),
        lambda text: text.replace(b'"step": 2', b'"stop": 2'),
        lambda text: text.replace(b'"train/loss": 1.0', b'"train/loss": 3.0'),
        lambda text: text.replace(b'"step": 2, "train/loss": 1.0}\n', b""),
        lambda text: text[: text.index(b'{"step": 2') + 9],
    ],
)
def test_a_damaged_row_is_restored_from_the_checkpoint(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path, checkpoint = tmp_path / "metrics.jsonl", tmp_path / "2"
    checkpoint.mkdir()
    write(path, 1, 2, keep_step=-1)
    intact = path.read_bytes()
    (checkpoint / path.name).write_bytes(intact)
    write(path, 3, keep_step=2)
    assert restore_metrics(tmp_path, checkpoint) is None
    assert steps(path) == [1, 2, 3]
    path.write_bytes(damage(path.read_bytes()))
    note = f"{path}: line 2 was damaged or lost. The rows were restored from {checkpoint}."
    assert restore_metrics(tmp_path, checkpoint) == note
    assert path.read_bytes() == intact


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, keep_step=0)
    file.write({"step": 1, "a": math.nan, "b": -math.inf, "c": 1.5})
    file.close()
    assert read_metrics(path) == [{"step": 1, "a": None, "b": None, "c": 1.5}]


def test_a_row_that_does_not_fit_on_the_disk_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, keep_step=0)
    file.write({"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"metrics.jsonl could not be written: File too large\.$"):
            file.write({"step": 2, "train/loss": 0.5})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        file.close()
    assert steps(path) == [1]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="could not be written: Not a directory"):
        MetricsFile(tmp_path / "file" / "metrics.jsonl", keep_step=0)
    with pytest.raises(CheckpointError, match="could not be written"):
        write_lines(tmp_path / "file" / "samples" / "eval-1.jsonl", [])


def test_a_run_whose_file_cannot_be_made_has_no_end_to_tell(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = Trackers({"run folder": RunFiles()}, SilentDisplay())
    with pytest.raises(CheckpointError, match="could not be written"):
        told.start(info(tmp_path / "file"))
    told.end("failed")


def test_a_row_is_written_when_the_call_returns(tmp_path: Path) -> None:
    told = Trackers({"run folder": RunFiles()}, SilentDisplay())
    told.start(info(tmp_path))
    told.metrics({"step": 1, "train/loss": 0.25})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "train/loss": 0.25}]
    told.end("completed")


def test_the_samples_of_an_evaluation(tmp_path: Path) -> None:
    good = sample_of(
        (2, 1, 0),
        prompt=Prompt(prompt_id="p7", text="12", label="21"),
        prompt_ids=(1, 2),
        text="21",
        spans=(Span(start=0, version=4),),
        status=GenerationStatus.COMPLETED,
        reward_status=RewardStatus.SCORED,
        score=Score(value=1.0, parts={"ended": 1.0}),
    )
    late = sample_of(
        prompt=Prompt(prompt_id="p8", text=[{"role": "user", "content": "hé"}]),
        prompt_ids=(),
        group_id=1,
        rollout_id="s",
        reward_status=RewardStatus.TIMED_OUT,
    )
    tracker = RunFiles()
    known = {(1,): "a", (2,): "1", (1, 2): "a1", (0,): "<end>"}
    run = replace(info(tmp_path), settings={"save_rollouts_every": 11}, decode=lambda ids: known[tuple(ids)])
    tracker.start(run)
    tracker.evaluation(10, {"easy": [good], "hard": [late]})
    tracker.rollout(10, [good])
    extras = {"advantages": (0.123456789, math.nan, 0.0), "bonus": 2}
    tracker.rollout(11, [good.but(extras=extras)])
    tracker.end("completed")
    assert not (tmp_path / "samples" / "rollout-10.jsonl").exists()
    first, second = map(json.loads, (tmp_path / "samples" / "eval-10.jsonl").read_text().splitlines())
    [third] = map(json.loads, (tmp_path / "samples" / "rollout-11.jsonl").read_text().splitlines())
    trajectory = third.pop("trajectory")  # what `replay` needs
    assert (trajectory["group_id"], trajectory["index"]) == (good.group_id, good.index)
    assert trajectory["response_ids"] == list(good.response_ids)
    assert trajectory["spans"] == [[0, 4]]
    assert trajectory["extras"] == {"advantages": [0.123457, None, 0.0], "bonus": 2.0}
    assert (trajectory["prompt_text"], trajectory["token_texts"]) == ("a1", ["1", "a", "<end>"])
    assert third == {**first, "set": "rollout"}
    assert first == {
        "set": "easy",
        "prompt_id": "p7",
        "prompt": "12",
        "label": "21",
        "response": "21",
        "tokens": 3,
        "status": "completed",
        "reward_status": "scored",
        "score": 1.0,
        "parts": {"ended": 1.0},
        "versions": [4],
    }
    assert (second["set"], second["score"], second["reward_status"]) == ("hard", None, "timed_out")
    assert second["prompt"] == [{"role": "user", "content": "hé"}]


def test_the_parts_of_a_character_stand_with_its_first_token() -> None:
    parts = [token.to_bytes() for token in "aé€!".encode()]
    sample = sample_of(tuple(range(len(parts))), prompt_ids=(0,))
    row = token_texts(sample, lambda ids: b"".join(parts[i] for i in ids).decode(errors="replace"))
    assert row["token_texts"] == ["a", "é", "", "€", "", "", "!"]
