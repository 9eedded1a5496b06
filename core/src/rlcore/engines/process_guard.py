"""Runs one server and outlives nobody: `python process_guard.py GRACE_S ARGV…`, run by path.

The parent holds the write end of this process's stdin. When that closes (the parent is gone, however it
died), or on SIGTERM, the server and every process that descends from it are told to end and, after
`GRACE_S` seconds, killed. The exit status is the server's.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1


class _Stop(Exception):  # noqa: N818 - a signal, not an error
    pass


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _stop(signum: int, frame: FrameType | None) -> None:
    raise _Stop


def _die_with_guard() -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_descendants(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server, then SIGKILL to whatever is left of its tree."""
    deadline = time.monotonic() + grace_s
    if server.poll() is None:
        server.terminate()
    while time.monotonic() < deadline and server.poll() is None:
        time.sleep(POLL_S)
    while left := _alive(server):
        for process in left:
            process.kill()
        time.sleep(POLL_S)


def _alive(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Running descendants; dead ones that were adopted are reaped."""
    server.poll()
    members = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
            elif process.pid != server.pid:
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return members


def _watch(server: subprocess.Popen[bytes], parent: int) -> None:
    """Returns when the server has ended or the parent has."""
    while server.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            return


def main(grace_s: float, argv: list[str]) -> int:
    """Runs `argv` to its end or the parent's; returns its exit status as `Popen.wait` does."""
    parent = os.getppid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # a descendant whose own parent dies becomes our child, not init's
    signal.signal(signal.SIGTERM, _stop)
    # One thread only, so that neither the fork nor the death signal (which is the thread's) is in danger.
    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard)
    with contextlib.suppress(_Stop):
        _watch(server, parent)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants(server, grace_s)
    return server.wait()


if __name__ == "__main__":
    status = main(float(sys.argv[1]), sys.argv[2:])
    sys.exit(128 - status if status < 0 else status)
