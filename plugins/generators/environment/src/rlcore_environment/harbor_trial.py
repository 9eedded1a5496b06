"""One trial of a Harbor task: a sandbox with the task's files, in which commands and then its tests run."""

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rlcore_environment.harbor_task import TEST_SCRIPT, TESTS, Copy, HarborTask
from rlcore_sandbox import ProgramEnd, Sandbox, SandboxLimits

TEST_OUTPUT_KIB = 16 * 1024
REWARD_BYTES = 1 << 16
TOLD_CHARS = 500


class HarborTrial:
    """Blocking. `close` ends its processes and removes its files."""

    def __init__(self, task: HarborTask, limits: SandboxLimits) -> None:
        self._task = task
        self._root = Path(tempfile.mkdtemp(prefix="rlcore-harbor-", dir=os.environ.get("RLCORE_SCRATCH")))
        try:
            for name in task.writable:
                self._begin(name)
            for copy in task.copies:
                self._copy(copy)
            self._inside(str(task.workdir)).mkdir(parents=True, exist_ok=True)
            for name in task.writable:  # but not the folder above, which keeps other users of the machine out
                _open_to_all(self._inside(name))
            folders = {name: str(self._inside(name)) for name in task.writable}
            self._sandbox = Sandbox(limits, folders=folders, system=str(task.image or ""))
        except BaseException:
            self._remove()
            raise

    def run(self, command: str) -> ProgramEnd:
        """A command of a shell, in the working directory. What it writes to both streams is `stdout`."""
        return self._sandbox.run_command(
            ["/bin/bash", "-c", f"exec 2>&1\n{command}"],
            folder=str(self._task.workdir),
            environment=self._task.environment,
        )

    def verify(self, seconds: float) -> dict[str, float]:
        """The rewards that the tests give, by name. Raises `RuntimeError` where they give none."""
        for name in ("/tests", "/logs"):  # nothing that a command has left there may speak for the tests
            _empty(self._inside(name))
        shutil.copytree(self._task.folder / TESTS, self._inside("/tests"), symlinks=True, dirs_exist_ok=True)
        logs = self._inside("/logs/verifier")
        logs.mkdir(parents=True)
        for name in ("/tests", "/logs"):
            _open_to_all(self._inside(name))
        script = self._inside(f"/tests/{TEST_SCRIPT}")
        script.chmod(0o777)
        done = self._sandbox.run_command(
            ["/bin/bash", "-c", f"exec 2>&1\n/tests/{TEST_SCRIPT}"],
            folder=str(self._task.workdir),
            environment={**self._task.environment, **self._task.test_environment},
            seconds=min(seconds, self._task.test_seconds),
            output_kib=TEST_OUTPUT_KIB,
        )
        if done.how != "ended":
            raise RuntimeError(f"the tests of {self._task.folder.name} ended by their limit of {done.how}")
        return self._rewards(logs, done.stdout)

    def close(self) -> None:
        """May be called once."""
        self._sandbox.close()
        self._remove()

    def _rewards(self, logs: Path, said: str) -> dict[str, float]:
        for name in ("reward.json", "reward.txt"):
            text = _read(logs / name)
            if text is None:
                continue
            try:
                content = json.loads(text)
                rewards = content if isinstance(content, Mapping) else {"reward": content}
                numbers = {str(key): float(value) for key, value in rewards.items()}
            except (ValueError, TypeError):
                numbers = {}
            if numbers and all(map(math.isfinite, numbers.values())):
                return numbers
            raise RuntimeError(
                f"the tests of {self._task.folder.name} wrote {text[:60]!r} to {name}, no numbers"
            )
        raise RuntimeError(
            f"the tests of {self._task.folder.name} gave no reward; they said: {said[-TOLD_CHARS:].strip()}"
        )

    def _inside(self, path: str) -> Path:
        """Where on this machine a path of the sandbox is."""
        return self._root / path.removeprefix("/")

    def _begin(self, name: str) -> None:
        """A folder that may be written: empty, or as the image has it."""
        image = self._task.image
        if image is not None and name not in ("/tests", "/logs", "/tmp") and (image / name[1:]).is_dir():
            shutil.copytree(image / name[1:], self._inside(name), symlinks=True)
        else:
            self._inside(name).mkdir()

    def _copy(self, copy: Copy) -> None:
        target = self._inside(str(copy.target))
        for source in copy.sources:
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            else:
                place = target / source.name if copy.into or target.is_dir() else target
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, place)

    def _remove(self) -> None:
        _unlock(self._root)
        shutil.rmtree(self._root, ignore_errors=True)


def _empty(folder: Path) -> None:
    """The folder itself stays: the sandbox holds on to it."""
    _unlock(folder)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _unlock(folder: Path) -> None:
    """Commands may have locked what they wrote; an ordinary user could not remove that."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], capture_output=True, check=False)


def _open_to_all(root: Path) -> None:
    """Lets the sandbox's user change all below; what runs for everybody stays so."""
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o777)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o777 if path.stat().st_mode & 0o111 else 0o666)


def _read(path: Path) -> str | None:
    """A small file that is no link."""
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(REWARD_BYTES).decode("utf-8", "replace")
