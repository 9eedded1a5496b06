"""The folder of a run: its owner's alone, and gone where the run could not be prepared."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import CheckpointError, ConfigError
from rlcore.runtime.run_folder import alone_in, run_folder


def test_it_is_its_owners_alone(tmp_path: Path) -> None:
    with run_folder(tmp_path / "runs" / "one") as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_runs_that_start_together_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with run_folder(None, "grpo-qwen3") as one, run_folder(None, "grpo-qwen3") as other:
        assert one != other
        assert {one, other} == set(Path("runs").iterdir())


def test_a_run_that_fails_takes_its_folder_from_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    with run_folder(None, "grpo-qwen3") as folder:
        assert gone
        assert folder.is_dir()


def test_a_failed_preparation_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with run_folder(tmp_path / "runs" / "one") as folder:
            (folder / "run.toml").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_leaves_no_parents(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="cannot be made: File name too long"),
        run_folder(tmp_path / "new" / ("x" * 300)),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_folder_in_which_a_run_goes_on_is_taken(tmp_path: Path) -> None:
    """Until that process ends, however it ends; what it has forked does not hold it."""
    code = """
import os, sys, time
from pathlib import Path
from rlcore.runtime.run_folder import alone_in
with alone_in(Path(sys.argv[1])):
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
"""
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        child = int(other.stdout.readline())
        with (
            pytest.raises(CheckpointError, match=f"process {other.pid} runs in it; end that one first"),
            alone_in(tmp_path),
        ):
            pass
        other.kill()
        other.wait()
        with alone_in(tmp_path):
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
        os.kill(child, signal.SIGKILL)
