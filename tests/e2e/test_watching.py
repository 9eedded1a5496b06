"""What is told of a run, and what steers it, through the command line."""

import json
import tomllib
from pathlib import Path
from typing import Any

from command import Run, rows, untimed

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
        *("notes", "failing", "tensorboard")
    ]
    run("train", "--resume", str(folder), "--steps", "3", "--tracker", "notes")
    again = notes(file)[len(first) :]
    assert again[0] == ["start", 2, "(hidden)", 0.001]
    assert again[-2:] == [["checkpoint", 3, True], ["end", "completed"]]
    assert [row["step"] for row in rows(folder)] == [0, 1, 2, 3]


def test_a_callback_steers_and_a_resumed_run_goes_on_to_the_bit(run: Run, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    chosen = ("--callback", "halving", "--lr", "0.001", "--keep-checkpoints", "9")
    steered = (*TRAIN, *SMALL, *chosen, "--minibatches", "2")
    run(*steered, "--steps", "5", "--run-dir", str(whole))
    # A step is taken with what was asked for before it: halved after the second and the fourth.
    assert [row["train/lr"] for row in rows(whole)[1:]] == [0.001, 0.001, 0.0005, 0.0005, 0.00025]
    evaluated = [row["step"] for row in rows(whole) if "eval/copy/score" in row]
    assert evaluated == [0, 1, 2, 4, 5]
    assert {path.name for path in (whole / "checkpoints").iterdir()} == {"1", "3", "5"}
    run(*steered, "--steps", "2", "--run-dir", str(broken))
    run("train", "--resume", str(broken), "--steps", "5")
    assert untimed(broken) == untimed(whole)


def test_a_run_ends_where_a_metric_passes_its_bound(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    bound = ("--callback.stop-at.metric", "rollout/groups", "--callback.stop-at.above", "4")
    command = run(*TRAIN, *SMALL, "--callback", "stop_at", *bound, "--json", "--run-dir", str(folder))
    summary = json.loads(command.stdout)
    assert summary["exit_reason"] == "stop_at: rollout/groups is 4, at least 4"
    assert summary["steps"] == 1
    assert "eval/copy/score" in rows(folder)[-1]
    assert (folder / "checkpoints" / "1" / "complete.json").is_file()
    run("train", "--resume", str(folder), "--no-callback", "--steps", "2")
    assert rows(folder)[-1]["step"] == 2


def test_a_run_that_has_nothing_to_learn_says_so_once(run: Run, tmp_path: Path) -> None:
    folder, reward = tmp_path / "run", tmp_path / "zero.py"
    reward.write_text("def zero(response: str) -> float:\n    return 0.0\n")
    rewarded = ("--reward", f"{reward}:zero", "--no-eval-first", "--eval-every", "0")
    command = run(*TRAIN, *SMALL, *rewarded, "--steps", "7", "--run-dir", str(folder))
    assert [row["rollout/groups_equal"] for row in rows(folder) if row["step"]] == [1.0] * 7
    assert command.stderr.count("There is nothing to learn: in each of the 5 steps up to step 5") == 1
