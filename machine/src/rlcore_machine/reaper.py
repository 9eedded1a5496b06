"""Ends what a dead driver leaves behind: `python reaper.py PID CHILDREN`, run by path, imports no rlcore.

The driver holds the write end of this process's stdin and writes folders to it, a line each. While it lives,
its descendants are noted; when it is gone, SIGKILL included, those that are left are ended and the folders
removed. CHILDREN are those that the driver had before: they, and what descends from them, are not its own.
A cluster may end its own processes too, but minutes later.
"""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

POLL_S = 1.0
GRACE_S = 3.0
SCRATCH = "RLCORE_SCRATCH"


class Reaper:
    """The driver's side. What it has already when this object is made is not its own to end."""

    def __init__(self) -> None:
        self._others = [str(child.pid) for child in psutil.Process().children()]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its process, before the first one that it is to end."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid()), *self._others],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def remove(self, folder: Path) -> None:
        """Have `folder` removed once this process is gone."""
        assert self._process is not None, "it has been started"
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Call it once this process has ended what it started. Whatever is left is ended now."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody ended it
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_S + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def scratch(reaper: Reaper) -> Iterator[None]:
    """A folder for files that no process of the run may leave behind, named by the variable `SCRATCH`."""
    folder = Path(tempfile.mkdtemp(prefix="rlcore-"))
    reaper.remove(folder)
    os.environ[SCRATCH] = str(folder)
    try:
        yield
    finally:
        del os.environ[SCRATCH]
        shutil.rmtree(folder, ignore_errors=True)


def _note(driver: int, others: Collection[int], known: dict[int, psutil.Process]) -> None:
    if os.getppid() != driver:  # it is gone, and its children are somebody else's
        return
    left_alone = {os.getpid(), *others}
    with contextlib.suppress(psutil.NoSuchProcess):
        # One look at the processes of the machine, which may be thousands. Parents come before children.
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # of this one: the others still count
                if not left_alone.isdisjoint((process.pid, process.ppid())):
                    left_alone.add(process.pid)
                else:
                    known.setdefault(process.pid, process)


def _end(known: dict[int, psutil.Process]) -> None:
    """SIGTERM, some time, SIGKILL. psutil compares creation times, so a reused pid is not hit."""
    left = [process for process in known.values() if process.is_running()]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, timeout=GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def main(driver: int, others: Collection[int]) -> None:
    known: dict[int, psutil.Process] = {}
    text = b""
    while True:
        _note(driver, others, known)
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable:
            read = os.read(sys.stdin.fileno(), 4096)
            if not read:
                break
            text += read
    _note(driver, others, known)  # what a driver that lives has started since the last look
    _end(known)
    for line in text.decode().splitlines():
        shutil.rmtree(line, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
