"""Runs one server and outlives nobody: `python process_guard.py GRACE_S ARGV…`, run by path.

The parent holds the write end of this process's stdin. When that closes (the parent is gone, however it
died), the server is told to end by SIGTERM and, after `GRACE_S` seconds, killed with every process that
descends from it. Otherwise signals that end a program do nothing to this process; with `GRACE_S` 0, nor to
the server, which nobody tells by them. The exit status is the server's.
"""

import ctypes
import functools
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _prctl(option: int, value: Any) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _become_server(grace_s: float) -> None:
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    if not grace_s:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


class _Module:
    """A module as a program, in a fork of this process: what is asked of a `subprocess.Popen`."""

    def __init__(self, name: str, argv: list[str], grace_s: float) -> None:
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become_server(grace_s)
            _prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = [name, *argv]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
            sys.exit()

    def poll(self) -> int | None:
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(POLL_S)
        return code

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def _end_descendants(server: subprocess.Popen[bytes] | _Module, grace_s: float) -> None:
    """SIGTERM to the server, then SIGKILL to whatever is left of its tree."""
    deadline = time.monotonic() + grace_s
    if server.poll() is None:
        server.terminate()  # not the tree: a server ends its own workers in order
    while time.monotonic() < deadline and server.poll() is None:
        time.sleep(POLL_S)
    while left := _alive(server):  # again and again: what is killed may just have started another
        for process in left:
            process.kill()
        time.sleep(POLL_S)


def _alive(server: subprocess.Popen[bytes] | _Module) -> list[psutil.Process]:
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


def _watch(server: subprocess.Popen[bytes] | _Module, parent: int) -> None:
    """Returns when the server has ended or the parent has."""
    # The parent's pid as well: a sibling that was forked with the pipe open keeps it from closing.
    while server.poll() is None and os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            return


def guard(grace_s: float, start: Callable[[], subprocess.Popen[bytes] | _Module]) -> int:
    """Runs a server to its end or the parent's; returns its exit status as `Popen.wait` does."""
    parent = os.getppid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # a descendant whose own parent dies becomes our child, not init's
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    server = start()
    _watch(server, parent)
    _end_descendants(server, grace_s)
    status = server.wait()
    return 128 - status if status < 0 else status


def guard_module(grace_s: float, name: str, *rest: Any) -> int:
    """Do what `python process_guard.py GRACE_S python -m NAME ARGV…` does, but with the imports done.

    `rest`: ARGV, and last the descriptor that stands for stdin.
    """
    *argv, leash = rest
    _prctl(PR_SET_NAME, ctypes.c_char_p(b"server-guard"))
    os.dup2(leash, 0)
    os.close(leash)
    return guard(grace_s, lambda: _Module(name, argv, grace_s))


def main(grace_s: float, argv: list[str]) -> int:
    """Runs `argv`."""
    # One thread only, so that neither the fork nor the death signal (which is the thread's) is in danger.
    become = functools.partial(_become_server, grace_s)
    return guard(grace_s, lambda: subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=become))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
