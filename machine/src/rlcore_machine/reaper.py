"""Ends what a dead driver leaves behind: `python reaper.py PID CHILDREN`, run by path, imports no rlcore.

The driver holds the write end of this process's stdin and writes folders to it, a line each. While it lives,
its descendants are noted; when it is gone, SIGKILL included, those that are left are ended and the folders
removed. CHILDREN are those that the driver had before: they, and what descends from them, are not its own.
A cluster may end its own processes too, but minutes later.

Where both the driver and this process are killed, the next driver removes the folders (`remove_ownerless`).
"""

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

POLL_S = 1.0
GRACE_S = 3.0
SCRATCH = "RLCORE_SCRATCH"
OWNER = ".rlcore-owner"
"""The file in a driver's folder that the driver locks while it lives. It names the boot of the host."""
MEMORY = Path("/dev/shm")


class Reaper:
    """The driver's side. What it has already when this object is made is not its own to end."""

    def __init__(self) -> None:
        self._others = [str(child.pid) for child in psutil.Process().children()]
        self._process: subprocess.Popen[bytes] | None = None
        self._locks = contextlib.ExitStack()

    def start(self) -> None:
        """Start its process, before the first one that it is to end. Removes what dead drivers have left."""
        for parent in {MEMORY, Path(tempfile.gettempdir())}:
            remove_ownerless(parent)
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, str(os.getpid()), *self._others],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def remove(self, folder: Path) -> None:
        """Have `folder` removed once this process is gone.

        Those beside it that dead drivers have left are removed now.
        """
        assert self._process is not None, "it has been started"
        assert self._process.stdin is not None
        remove_ownerless(folder.parent)
        self._own(folder)
        with contextlib.suppress(BrokenPipeError):  # somebody ended it
            self._process.stdin.write(f"{folder}\n".encode())
            self._process.stdin.flush()

    def _own(self, folder: Path) -> None:
        """Until `close`, this process owns `folder`: no other driver removes it."""
        draft, boot = folder / f"{OWNER}.draft", _boot()
        if not boot:
            return
        with contextlib.suppress(OSError):  # no room, or a file system without locks: then nobody removes it
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600)
            self._locks.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, boot)
            draft.rename(folder / OWNER)  # whoever finds it by its name finds it locked

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
        self._locks.close()


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


def remove_ownerless(parent: Path) -> None:
    """Remove the folders in `parent` that drivers of this user and host had and that nobody owns any more."""
    boot = _boot()
    for file in parent.glob(f"*/{OWNER}") if boot else ():
        with (
            contextlib.suppress(OSError),
            file.open("rb") as owner,
        ):  # one that is busy, foreign, or just removed
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # On a shared file system another host may hold a lock that is not seen here.
            if os.fstat(owner.fileno()).st_uid == os.getuid() and owner.read() == boot:
                shutil.rmtree(file.parent, ignore_errors=True)


def _boot() -> bytes:
    """What tells this boot of this host from all others; empty where the system does not say."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_bytes() if file.exists() else b""


def _note(driver: int, others: Collection[int], descendants: dict[int, psutil.Process]) -> None:
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
                    descendants.setdefault(process.pid, process)


def _end(descendants: dict[int, psutil.Process]) -> None:
    """SIGTERM, some time, SIGKILL. psutil compares creation times, so a reused pid is not hit."""
    left = [process for process in descendants.values() if process.is_running()]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, timeout=GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def main(driver: int, others: Collection[int]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # who ends a job sends them to all of it
        signal.signal(number, signal.SIG_IGN)
    descendants: dict[int, psutil.Process] = {}
    text = b""
    while True:
        _note(driver, others, descendants)
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable:
            read = os.read(sys.stdin.fileno(), 4096)
            if not read:
                break
            text += read
    _note(driver, others, descendants)  # what a driver that lives has started since the last look
    _end(descendants)
    for line in text.decode().splitlines():
        shutil.rmtree(line, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(pid) for pid in sys.argv[2:]])
