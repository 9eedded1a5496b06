"""The folder of a run: its owner's alone, and gone where the run could not be prepared."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from rlcore.api.errors import ConfigError
from rlcore.runtime.run_folder import run_folder


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
