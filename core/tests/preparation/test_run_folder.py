"""The folder of a run: its owner's alone, and gone where the run could not be prepared."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import CheckpointError, ConfigError
from rlcore.preparation.run_folder import alone_in, run_folder

NAME = "grpo-qwen3"


@pytest.fixture
def held() -> Iterator[ExitStack]:
    """What holds the folders of a test."""
    with ExitStack() as stack:
        yield stack


def test_it_is_its_owners_alone(tmp_path: Path, held: ExitStack) -> None:
    with run_folder(tmp_path / "runs" / "one", held, NAME) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_runs_that_start_together_have_a_folder_each(
    tmp_path: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with run_folder(None, held, NAME) as one, run_folder(None, held, NAME) as other:
        assert one != other
        assert {one, other} == set(Path("runs").iterdir())


def test_a_run_that_fails_takes_its_folder_from_no_other(
    tmp_path: Path, held: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Path.mkdir

    def mkdir(self: Path, *of: Any, **more: Any) -> None:
        made(self, *of, **more)
        if self.name == "runs" and not gone:
            gone.append(self)
            self.rmdir()  # as another run does that had made it, and failed

    gone: list[Path] = []
    monkeypatch.setattr(Path, "mkdir", mkdir)
    with run_folder(None, held, NAME) as folder:
        assert gone
        assert folder.is_dir()


def test_a_failed_preparation_leaves_nothing(tmp_path: Path, held: ExitStack) -> None:
    def fail() -> None:
        with run_folder(tmp_path / "runs" / "one", held, NAME) as folder:
            (folder / "run.toml").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_leaves_no_parents(tmp_path: Path, held: ExitStack) -> None:
    with (
        pytest.raises(ConfigError, match="cannot be made: File name too long"),
        run_folder(tmp_path / "new" / ("x" * 300), held, NAME),
    ):
        pass
    assert not list(tmp_path.iterdir())


CODE = """
import os, sys, time
from pathlib import Path
from rlcore.preparation.run_folder import alone_in
with alone_in(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that runs in `tmp_path`, and the id of its child."""
    argv = [sys.executable, "-c", CODE, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_a_folder_in_which_a_run_goes_on_is_taken(
    tmp_path: Path, held: ExitStack, other: tuple[subprocess.Popen[str], int]
) -> None:
    """Until that process ends, however it ends; what it has forked does not hold it."""
    said = f"process {other[0].pid} runs in it; end that one first, or name another folder"
    (tmp_path / "run.toml").touch()
    for resume in (True, False):
        with (
            pytest.raises(CheckpointError, match=said),
            run_folder(tmp_path, held, NAME, resume=resume),
        ):
            pass
    other[0].kill()
    other[0].wait()
    with alone_in(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_run_that_loses_the_folder_leaves_it_to_the_other(
    tmp_path: Path,
    held: ExitStack,
    other: tuple[subprocess.Popen[str], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have found it empty: two processes of one `srun` look at the same time."""
    monkeypatch.setattr("rlcore.preparation.run_folder.check_new", lambda folder: None)
    (tmp_path / "run.toml").touch()
    with pytest.raises(CheckpointError, match="runs in it"), run_folder(tmp_path, held, NAME):
        pass
    assert (tmp_path / "run.toml").is_file()
    assert (tmp_path / ".lock").read_text() == str(other[0].pid)


def test_a_full_folder_is_refused(tmp_path: Path, held: ExitStack) -> None:
    (tmp_path / "mine").touch()
    for given in (tmp_path, tmp_path / "mine"):
        with (
            pytest.raises(ConfigError, match="is neither new nor an empty folder; name another"),
            run_folder(given, held, NAME),
        ):
            pass
    assert os.listdir(tmp_path) == ["mine"]
