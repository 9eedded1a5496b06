"""A run that was killed goes on as if nothing had happened."""

import ipaddress
import os
import signal
import stat
from pathlib import Path

import psutil
import pytest
from command import SMALL, Run, Start, gone, line_of, rows, untimed, wait_for

TRAIN = ("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--minibatches", "2", "--eval-every", "4")


@pytest.mark.daily
def test_killed_and_resumed_is_identical_to_uninterrupted(run: Run, start: Start, tmp_path: Path) -> None:
    """Nor do Ray beside it, and weights that are published by their changes, make any difference."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    saving = ("--save-every", "3", "--keep-checkpoints", "1")
    run(*TRAIN, "--steps", "8", *saving, "--run-dir", str(whole))
    assert [path.name for path in (whole / "checkpoints").iterdir()] == ["8"]
    changes = ("--engine.publish", "delta")
    command = start(*TRAIN, *changes, "--steps", "8", "--save-every", "3", "--run-dir", str(broken), ray=True)
    wait_for(lambda: (broken / "checkpoints" / "3" / "complete.json").is_file(), alive=command)
    children = command.descendants()
    assert any("rlcore_local" in line_of(child) for child in children), "its engine must end as well"
    ray_folder = _ray_folder(children)
    os.kill(command.process.pid, signal.SIGKILL)
    command.wait()
    gone(children, limit=60)
    wait_for(lambda: not ray_folder.exists(), limit=30)
    run("train", "--resume", str(broken))
    assert untimed(broken) == untimed(whole)


def test_sigterm_to_all_processes_saves_and_the_rest_follows(run: Run, start: Start, tmp_path: Path) -> None:
    """As systemd, srun and containers send it: the workers and engines leave it to the driver."""
    folder = tmp_path / "run"
    command = start(*TRAIN, "--ranks", "2", "--steps", "200", "--run-dir", str(folder))
    wait_for(lambda: (folder / "metrics.jsonl").is_file() and len(rows(folder)) > 2, alive=command)
    children = command.descendants()
    for number in (signal.SIGTERM, signal.SIGHUP):
        for child in children:
            child.send_signal(number)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait() == 0
    gone(children)
    step = rows(folder)[-1]["step"]
    assert (folder / "checkpoints" / str(step) / "complete.json").is_file()
    hint = f"checkpoint of step {step}: go on with rlcore train --resume {folder}"
    assert command.stdout.splitlines()[-1] == hint
    steps, whole = ("--steps", str(step + 1)), tmp_path / "whole"
    run("train", "--resume", str(folder), *steps)
    run(*TRAIN, "--ranks", "2", *steps, "--run-dir", str(whole))
    assert untimed(folder) == untimed(whole)


@pytest.mark.daily
def test_ctrl_c_stops_everything_and_the_run_can_start_anew(start: Start, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = start(*TRAIN, "--steps", "200", "--ranks", "2", "--run-dir", str(folder), ray=True)
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    children = command.descendants()
    _all_listen_on_loopback(psutil.Process(command.process.pid), *children)
    servers = [child for child in children if child.name() == "gcs_server"]
    assert [server.environ()["RAY_AUTH_MODE"] for server in servers] == ["token"]
    own = _ray_folder(children)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700, "Ray lets everybody write into its folders"
    command.process.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    assert "Stopping what was started" in command.stdout
    assert "no checkpoint: this run cannot be resumed. --save-every N saves every N steps;" in command.stdout
    gone(children)
    assert not own.exists()
    assert "Traceback" not in command.stderr
    again = run("train", "--resume", str(folder), "--steps", "1")
    assert f"{folder} holds no complete checkpoint, so the run starts anew." in again.stdout + again.stderr
    assert [row["step"] for row in rows(folder)] == [0, 1]


@pytest.mark.parametrize(
    ("phase", "number", "code"),
    [("Connecting to the cluster ray", signal.SIGTERM, 143), ("Starting the engines", signal.SIGINT, 130)],
)
def test_a_signal_at_the_start_ends_it_cleanly(
    start: Start, tmp_path: Path, phase: str, number: int, code: int
) -> None:
    command = start(*TRAIN, "--steps", "200", "--run-dir", str(tmp_path / "run"), ray=True)
    wait_for(lambda: phase in command.stdout, alive=command)
    wait_for(lambda: len(command.descendants()) > 1, alive=command)  # one of them watches
    children = command.descendants()
    command.process.send_signal(number)
    assert command.wait(60) == code
    assert "Stopping what was started" in command.stdout
    gone(children)
    assert "Traceback" not in command.stderr
    assert command.stderr.lstrip().startswith("error: ")


def _ray_folder(children: list[psutil.Process]) -> Path:
    """The folder that was made for the Ray among `children`."""
    [server] = [child for child in children if child.name() == "gcs_server"]
    [logs] = [Path(part.removeprefix("--log_dir=")) for part in server.cmdline() if "--log_dir=" in part]
    return next(folder for folder in logs.parents if folder.name.startswith("rlcore-ray-"))


def _all_listen_on_loopback(*processes: psutil.Process) -> None:
    found = [
        (connection.laddr.ip.removeprefix("::ffff:"), process.cmdline())
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert found, "Ray, the engine and the ranks listen"
    assert not [(ip, line) for ip, line in found if not ipaddress.ip_address(ip).is_loopback]


def test_changed_past_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(*TRAIN, "--steps", "1", "--run-dir", str(folder))
    command = run("train", "--resume", str(folder), "--lr", "0.5", code=2)
    assert "--lr" in command.stderr
    command = run("train", "--resume", str(folder), code=2)
    assert "--steps" in command.stderr
