"""A train worker that dies ends the run, an engine is replaced; in the end nothing stays behind."""

import json
import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest
from command import SMALL, Command, Start, gone, line_of, rows, wait_for

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", "500")
ENGINE = ("rlcore_local",)


def _started(
    start: Start, folder: Path, *flags: str, ray: bool = False
) -> tuple[Command, list[psutil.Process]]:
    command = start(*TRAIN, "--json", *flags, "--run-dir", str(folder), ray=ray)
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    return command, command.descendants()


def _find(processes: list[psutil.Process], *words: str) -> psutil.Process:
    for process in processes:
        if all(word in line_of(process) for word in words):
            return process
    raise AssertionError([process.cmdline() for process in processes])


@pytest.mark.parametrize("ray", [True, False], ids=["ray", "processes"])
def test_death_ends_the_run_with_its_reason(start: Start, tmp_path: Path, ray: bool) -> None:
    """One of two ranks: the other one waits for it in a collective."""
    command, processes = _started(start, tmp_path / "run", "--ranks", "2", ray=ray)
    os.kill(_find(processes[::-1], "TrainWorker").pid, signal.SIGKILL)
    begin = time.monotonic()
    assert command.wait(60) == 1
    assert time.monotonic() - begin < 30
    assert re.search(r"Train worker [01] died", command.stderr)
    assert "Traceback" not in command.stderr
    last = json.loads(command.stdout.splitlines()[-1])  # Ray may have its say before
    assert (last["exit_reason"], last["run"]) == ("failed", str(tmp_path / "run"))
    assert last["steps"] < 500
    gone(processes)


@pytest.mark.parametrize(
    ("flags", "process", "name"),
    [
        (("--rollout-workers", "2"), "RolloutWorker", "Rollout worker [01]"),
        (("--kl-coef", "0.1", "--reference.ranks", "1"), "RoleWorker", "Reference worker 0"),
    ],
    ids=["rollout", "reference"],
)
def test_another_worker_that_dies_ends_the_run(
    start: Start, tmp_path: Path, flags: tuple[str, ...], process: str, name: str
) -> None:
    command, processes = _started(start, tmp_path / "run", *flags)
    os.kill(_find(processes[::-1], process).pid, signal.SIGKILL)
    assert command.wait(60) == 1
    assert re.search(rf"{name} died: SIGKILL ended its process\.", command.stderr), command.stderr
    assert "Traceback" not in command.stderr
    gone(processes)


@pytest.mark.daily
def test_an_engine_is_replaced_as_often_as_it_may_be(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command, first = _started(start, folder, "--engine-replacements", "1")
    _find(first, *ENGINE).kill()
    wait_for(lambda: any(row.get("engine/replaced") == 1 for row in rows(folder)), alive=command)
    second = command.descendants()
    _find(second, *ENGINE).kill()
    assert command.wait() == 1
    assert "Engine 0 is lost, and the run has used up its --engine-replacements 1" in command.stderr
    assert "Traceback" not in command.stderr
    gone([*first, *second])


@pytest.mark.parametrize(("name", "ray"), [("TrainWorker", True), ("TrainWorker", False), ("raylet", True)])
def test_a_process_that_stops_ends_the_run(start: Start, tmp_path: Path, name: str, ray: bool) -> None:
    """It lives, so that nothing but its silence tells of it."""
    command, processes = _started(start, tmp_path / "run", "--worker-health-limit", "4", ray=ray)
    os.kill(_find(processes, name).pid, signal.SIGSTOP)
    assert command.wait(60) == 1
    told = {
        "TrainWorker": r"Train worker 0 has given no sign of life for 4 s \(--worker-health-limit\): its "
        r"process is stopped, or its host cannot be reached. It had been at training step \d+ for \d+ s.",
        "raylet": r"Ray's process 'raylet' has been stopped for 4 s",
    }
    assert re.search(told[name], command.stderr), command.stderr
    assert "Traceback" not in command.stderr
    gone(processes)


def test_a_fork_server_that_stops_while_the_run_starts_ends_it(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = start(*TRAIN, "--worker-health-limit", "4", "--run-dir", str(folder))
    wait_for(lambda: (folder / "run.toml").is_file(), alive=command)
    processes = command.descendants()
    os.kill(_find(processes, "fork-server").pid, signal.SIGSTOP)
    assert command.wait(60) == 1
    assert "The fork server has been stopped for 4 s (--worker-health-limit)." in command.stderr
    gone(processes)


def test_the_end_of_ray_itself_ends_the_run(start: Start, tmp_path: Path) -> None:
    command, processes = _started(start, tmp_path / "run", ray=True)
    os.kill(_find(processes, "gcs_server").pid, signal.SIGKILL)
    assert command.wait(60) == 1
    assert "Ray's process 'gcs_server' has ended" in command.stderr
    gone(processes)


def test_an_engine_whose_supervisor_stops_is_replaced(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command, processes = _started(start, folder, "--engine-health-limit", "4")
    os.kill(_find(processes, "EngineSuperviso").pid, signal.SIGSTOP)
    wait_for(lambda: any(row.get("engine/replaced") == 1 for row in rows(folder)), alive=command)


def test_a_step_has_a_limit(start: Start, tmp_path: Path) -> None:
    command = start(*TRAIN, "--step-timeout", "0.001", "--run-dir", str(tmp_path / "run"))
    assert command.wait(60) == 1
    # A busy driver may find the first steps done when it comes to wait for them.
    sentence = r"Train worker 0 did not finish training step \d+ within 0\.001 s \(--step-timeout\)\."
    assert re.search(sentence, command.stderr), command.stderr
