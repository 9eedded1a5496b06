"""A run that was killed goes on as if nothing had happened."""

import os
import signal
from pathlib import Path

from command import SMALL, Run, Start, gone, rows, untimed, wait_for

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--minibatches", "2", "--eval-every", "4")


def test_killed_and_resumed_is_identical_to_uninterrupted(run: Run, start: Start, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(*TRAIN, "--steps", "8", "--save-every", "3", "--run-dir", str(whole))
    command = start(*TRAIN, "--steps", "8", "--save-every", "3", "--run-dir", str(broken))
    wait_for(lambda: (broken / "checkpoints" / "3" / "complete.json").is_file(), alive=command)
    children = command.descendants()
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    gone(children, limit=60)
    run("train", "--resume", str(broken))
    assert untimed(broken) == untimed(whole)


def test_sigterm_saves_and_ends_and_the_rest_follows(run: Run, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = start(*TRAIN, "--steps", "200", "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file() and len(rows(folder)) > 2, alive=command)
    children = command.descendants()
    command.process.send_signal(signal.SIGTERM)
    command.wait()
    gone(children)
    step = rows(folder)[-1]["step"]
    assert (folder / "checkpoints" / str(step) / "complete.json").is_file()
    run("train", "--resume", str(folder), "--steps", str(step + 1), code=0)
    assert rows(folder)[-1]["step"] == step + 1


def test_ctrl_c_stops_everything(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = start(*TRAIN, "--steps", "200", "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    children = command.descendants()
    command.process.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    gone(children)
    assert "Traceback" not in command.stderr


def test_changed_past_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(*TRAIN, "--steps", "1", "--run-dir", str(folder))
    command = run("train", "--resume", str(folder), "--lr", "0.5", code=2)
    assert "--lr" in command.stderr
    command = run("train", "--resume", str(folder), code=2)
    assert "--steps" in command.stderr
