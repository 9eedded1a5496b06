"""What is told of a run, and what steers it, through the command line."""

import json
import tomllib
from pathlib import Path
from typing import Any

from command import Run, rows

PLUGIN = ("--plugin", str(Path(__file__).with_name("watching_parts.py")))
TRAIN = ("train", *PLUGIN, "--algo", "grpo", "--model", "qwen3", "--eval-prompts", "8", "--eval-every", "2")
SMALL = ("--prompts-per-step", "4", "--group-size", "4")


def notes(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_trackers_are_told_and_none_ends_the_run(run: Run, tmp_path: Path) -> None:
    """Also of what a resumed run goes on with; a secret stays in the run's own file."""
    folder, file = tmp_path / "run", tmp_path / "notes.jsonl"
    told = ("--tracker.notes.file", str(file), "--tracker.notes.token", "hunter2")
    chosen = ("--tracker", "notes", "--tracker", "failing", "--tracker", "tensorboard", *told)
    command = run(*TRAIN, *SMALL, *chosen, "--steps", "2", "--lr", "0.001", "--run-dir", str(folder))
    assert command.stderr.count("The tracker 'failing' failed at 'metrics'") == 1
    assert "ConnectionError: nobody took step 0. The run goes on." in command.stderr
    first = [
        ["start", 0, "(hidden)", 0.001],
        ["evaluation", 0, {"copy": 8}],
        ["metrics", 0, False],
        ["rollout", 1, 16],
        ["metrics", 1, True],
        ["rollout", 2, 16],
        ["evaluation", 2, {"copy": 8}],
        ["metrics", 2, True],
        ["checkpoint", 2, True],
        ["end", "completed"],
    ]
    assert notes(file) == first
    assert list((folder / "tensorboard").iterdir())
    assert tomllib.loads((folder / "run.toml").read_text())["tracker"]["name"] == [
        *("jsonl", "notes", "failing", "tensorboard")
    ]
    run("train", "--resume", str(folder), "--steps", "3", "--tracker", "notes")
    again = notes(file)[len(first) :]
    assert again[0] == ["start", 2, "(hidden)", 0.001]
    assert again[-2:] == [["checkpoint", 3, True], ["end", "completed"]]
    assert [row["step"] for row in rows(folder)] == [0, 1, 2, 3]
