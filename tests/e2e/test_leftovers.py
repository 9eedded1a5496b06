"""However a run ends, no file of it stays outside its folder, and no process."""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command import SMALL, Command, Start, gone, line_of, wait_for


def _signalled(number: int) -> Callable[[Command, list[psutil.Process], Path], None]:
    def end(command: Command, processes: list[psutil.Process], folder: Path) -> None:
        command.process.send_signal(number)

    return end


def _insisted(command: Command, processes: list[psutil.Process], folder: Path) -> None:
    """Ctrl-C for as long as it lives: only the first counts."""
    for _ in range(300):
        if command.process.poll() is not None:
            break
        command.process.send_signal(signal.SIGINT)
        time.sleep(0.2)


def _killed(name: str) -> Callable[[Command, list[psutil.Process], Path], None]:
    def end(command: Command, processes: list[psutil.Process], folder: Path) -> None:
        (found, *_) = [one for one in processes if name in line_of(one)]
        found.kill()

    return end


def _removed(command: Command, processes: list[psutil.Process], folder: Path) -> None:
    shutil.rmtree(folder)


ENDS = {
    "completed": (None, 0),
    "ctrl-c": (_signalled(signal.SIGINT), 130),
    "ctrl-c, again and again": (_insisted, 130),
    "sigterm": (_signalled(signal.SIGTERM), 0),
    "sighup": (_signalled(signal.SIGHUP), 0),
    "sigkill": (_signalled(signal.SIGKILL), -signal.SIGKILL),
    "a dead worker": (_killed("TrainWorker"), 1),
    "a dead fork server": (_killed("fork-server"), 1),
    "a dead engine": (_killed("rlcore_local"), 1),
    "no folder": (_removed, 1),
}


def _in_memory(command: Command) -> list[Path]:
    """The published weights of its run."""
    return list(Path("/dev/shm").glob(f"rlcore-*-{command.process.pid}-*"))


def _files(temporary: Path) -> list[str]:
    """But for the cache that torch keeps for later programs."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


SIGNALLED = ("ctrl-c", "ctrl-c, again and again", "sigterm", "sighup")
"""A process inherits how signals are handled, so for these it starts as a user starts it."""
WITH_RAY = ("ctrl-c, again and again", "sigkill")


@pytest.mark.parametrize(
    ("end", "ray"), [*((end, False) for end in ENDS), *((end, True) for end in WITH_RAY)]
)
def test_nothing_is_left_of_a_run_that_ended(start: Start, tmp_path: Path, end: str, ray: bool) -> None:
    ending, code = ENDS[end]
    temporary, folder = tmp_path / "t", tmp_path / "run"
    temporary.mkdir()
    steps = "20" if ending is None else "500"
    where = ("--cluster", "processes") if not ray else ()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
    try:
        command = start(
            *("train", "--algo", "grpo", "--model", "qwen3", *SMALL, "--steps", steps, *where),
            *("--engine-replacements", "0", "--eval-every", "0", "--run-dir", str(folder)),
            env={"TMPDIR": str(temporary)},
            fresh=end in SIGNALLED,
            ray=ray,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_for(lambda: (folder / "metrics.jsonl").is_file(), alive=command)
    processes = command.descendants()
    assert _files(temporary), "the run has files there while it lasts"
    assert _in_memory(command)
    if ending is not None:
        ending(command, processes, folder)
    assert command.wait(90) == code, command.stderr
    assert (end == "no folder") == ("the run's folder is gone" in command.stderr)
    if code == 130:
        assert "interrupted: step" in command.out.read_text()
    gone(processes)
    wait_for(lambda: not _files(temporary), limit=30)
    wait_for(lambda: not _in_memory(command), limit=30)
