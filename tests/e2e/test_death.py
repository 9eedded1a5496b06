"""A process that dies ends the run with its reason, soon, and nothing stays behind."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from command import SMALL, Command, Start, gone, wait_for

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "500")


def _started(start: Start, folder: Path) -> tuple[Command, list[psutil.Process]]:
    command = start(*TRAIN, "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    return command, command.descendants()


def _find(processes: list[psutil.Process], *words: str) -> psutil.Process:
    for process in processes:
        line = " ".join(process.cmdline())
        if all(word in line for word in words):
            return process
    raise AssertionError([process.cmdline() for process in processes])


@pytest.mark.parametrize(
    ("words", "says"),
    [(("ray::TrainWorker",), "Train worker 0 died"), (("rlcore.engines.local",), "ended with exit code")],
)
def test_death_ends_the_run_with_its_reason(
    start: Start, tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    command, processes = _started(start, tmp_path / "run")
    os.kill(_find(processes, *words).pid, signal.SIGKILL)
    begin = time.monotonic()
    assert command.wait(60) == 1
    assert time.monotonic() - begin < 30
    assert says in command.stderr
    assert "Traceback" not in command.stderr
    gone(processes)
