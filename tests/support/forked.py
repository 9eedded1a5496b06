"""`rlcore ARGUMENTS` as a fork of a process that has its imports behind it: they take longer than most tests.

The command is the program's own `run`, in a process, a session and a folder of its own. What differs from the
console script is the time to import torch, transformers and Ray.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

START_LIMIT_S = 120.0
PRELOADED = ("torch", "transformers.tokenization_utils_base", "rlcore_cli.main", "rlcore.runtime.train")
_MAX_REQUEST = 2**16


class Forked:
    """One command: what a test asks of a `subprocess.Popen`."""

    def __init__(self, pid: int, status: int) -> None:
        """`status`: the read end of the pipe that its exit code comes through."""
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it runs; negative: the signal that ended it."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. `subprocess.TimeoutExpired` where it takes longer."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"rlcore ({self.pid})", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """As `os.kill`, of a command that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._status], [], [], timeout)[0]:
            self._code = int(os.read(self._status, 16))
            os.close(self._status)
        return self._code


class Forker:
    """The process that forks, started when it is first asked. Ended by the end of this one."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], out: Path, err: Path
    ) -> Forked:
        """A command. `env`: its whole environment; libraries have read that of this process by then."""
        control = self._control = self._control or self._start()
        near, far = os.pipe()
        request = [list(arguments), str(cwd), dict(env), str(out), str(err)]
        text = json.dumps(request).encode()
        assert len(text) < _MAX_REQUEST, "a request is one message"
        socket.send_fds(control, [text], [far])
        os.close(far)
        return Forked(int(control.recv(16)), near)

    def _start(self) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.settimeout(START_LIMIT_S)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(far.fileno())],
                pass_fds=[far.fileno()],
                env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            )
        atexit.register(self._process.wait)
        atexit.register(near.close)  # called first
        return near


def main(control: socket.socket) -> None:
    """Fork a command for each request, until the tests have ended."""
    import importlib

    sys.path.remove(str(Path(__file__).parent))  # the console script has it not
    for name in PRELOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for a command
    while True:
        text, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 1)
        if not text:
            return
        [status] = descriptors
        if not os.fork():
            _watch(control, status, json.loads(text))
        os.close(status)


def _watch(control: socket.socket, status: int, request: list[Any]) -> NoReturn:
    """Run the command in a child, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        control.close()
        os.close(status)
        _become(*request)
    control.send(str(pid).encode())
    control.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, str(code).encode())
    os._exit(0)


def _become(arguments: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> NoReturn:
    """This process is `rlcore ARGUMENTS` from here on."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (descriptor > 0), 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [str(Path(sys.executable).with_name("rlcore")), *arguments]
    code = 1
    try:
        from rlcore_cli.main import run

        code = run(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
