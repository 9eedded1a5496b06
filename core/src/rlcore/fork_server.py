"""`ForkServer`: a process that has imported what takes seconds, and forks processes that need it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from rlcore.heap import settle_heap

_MAX_REQUEST = 2**17
_MAX_DESCRIPTORS = 8
_STOP_SECONDS = 10.0
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class Forked:
    """A forked process: what is asked of a `subprocess.Popen`. Thread-safe."""

    def __init__(self, status: int) -> None:
        """`status`: the read end of the pipe that its process id, and later its exit code, come through."""
        self._status = status
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """Its process id, once it is there. ProcessLookupError where it could not be forked."""
        with self._lock:
            if self._pid is None:
                self._pid = self._next()
            if self._pid is None:
                raise ProcessLookupError("The fork server has ended.")
            return self._pid

    def poll(self) -> int | None:
        """The exit code, or None while it runs; negative: the signal that ended it."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. `subprocess.TimeoutExpired` where it takes longer."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self._pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """As `os.kill`, of a process that still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        with contextlib.suppress(ProcessLookupError):
            _ = self.pid  # comes first
        if self._code is None and select.select([self._status], [], [], timeout)[0]:
            with self._lock:
                if self._code is None:  # no other thread has read it
                    code = self._next()
                    # With the fork server ends what it has forked.
                    self._code = -signal.SIGKILL if code is None else code
        return self._code

    def __del__(self) -> None:
        os.close(self._status)

    def _next(self) -> int | None:
        """The next number; None where the fork server has ended."""
        text = b""
        while not text.endswith(b"\n"):
            byte = os.read(self._status, 1)
            if not byte:
                return None
            text += byte
        return int(text)


class ForkServer:
    """Forks processes that have imported `preload`. Its end, or its owner's, ends those that are `tied`."""

    current: ClassVar[ForkServer | None] = None
    """The one that forked this process, which may ask it as well."""

    def __init__(
        self,
        preload: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        _control: socket.socket | None = None,
    ) -> None:
        """`preload`: modules; one that cannot be imported is left to the process that needs it.

        `env`: variables for the imports, beside those of this process.
        """
        self._end: subprocess.Popen[bytes] | int | None = None
        if _control is not None:
            self._control = _control
            return
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._end = (
                self._forked(far, preload) if ForkServer.current else self._started(far, preload, env or {})
            )

    def fork(
        self,
        target: str,
        arguments: Sequence[Any],
        descriptors: Sequence[int] = (),
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        out: Path | None = None,
        err: Path | None = None,
        tied: bool = True,
    ) -> Forked:
        """A process, in a session of its own, that calls `target`, `module:function`.

        It is called with `arguments`, which must be JSON, and its own copies of `descriptors`; the exit code
        is what it returns. `env`: the whole environment; libraries have read the server's by then. `out`,
        `err`: files that its output is added to; else it is lost.
        """
        request = {
            "target": target,
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "out": str(out or os.devnull),
            "err": str(err or out or os.devnull),
            "tied": tied,
        }
        text = json.dumps(request).encode()
        if len(text) > _MAX_REQUEST:
            raise OSError("its arguments and its environment are too long")
        near, far = os.pipe()
        try:
            socket.send_fds(self._control, [text], [far, *descriptors])
        except OSError:  # the server has ended: so has what it would have forked
            pass
        finally:
            os.close(far)
        return Forked(near)

    @property
    def pid(self) -> int:
        """Of the server that this object started."""
        assert self._end is not None, "it runs, and is not that of another process"
        return self._end if isinstance(self._end, int) else self._end.pid

    def close(self) -> None:
        """End it, and with it what is tied to it."""
        self._control.close()
        end, self._end = self._end, None
        if isinstance(end, subprocess.Popen):
            end.terminate()
            try:
                end.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                end.kill()
                end.wait()
        elif end is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(end, signal.SIGKILL)
                os.waitpid(end, 0)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(
        self, far: socket.socket, preload: Sequence[str], env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        command = "import sys; from rlcore.fork_server import main; main(*sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", command, str(far.fileno()), str(os.getpid()), *preload],
            pass_fds=[far.fileno()],
            stdin=subprocess.DEVNULL,
            # Those that are forked take turns on the same cores: who waits spins for microseconds only.
            env={**os.environ, "GOMP_SPINCOUNT": "1500", **env},
        )

    def _forked(self, far: socket.socket, preload: Sequence[str]) -> int:
        """This process has imports behind it already, so its own server is a fork of it."""
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                self._control.close()
                _serve(far, parent, preload)
            finally:
                os._exit(0)
        return pid


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` show for this process; 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def main(control: str, parent: str, *preload: str) -> None:
    """The server, where it is a program."""
    _serve(socket.socket(fileno=int(control)), int(parent), preload)


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _end_with(parent: int) -> None:
    """Have the kernel kill this process at its parent's end."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _serve(control: socket.socket, parent: int, preload: Sequence[str]) -> None:
    _end_with(parent)
    name_process("fork-server")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to all; the owner ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in preload:
        with contextlib.suppress(Exception):  # whoever needs it says so
            importlib.import_module(name)
    settle_heap()
    woken, wakes = socket.socketpair()
    woken.setblocking(False)
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    asked, asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # of those that are forked
    running: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([control, asked, woken], [], [])
        if woken in readable:
            woken.recv(4096)
            _tell_ended(running)
        for requests in {control, asked}.intersection(readable):
            text, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, _MAX_DESCRIPTORS)
            if not text:  # the owner's end
                return
            status, *given = descriptors
            server = os.getpid()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for one in (control, asked, woken, wakes):
                    one.close()
                for descriptor in (status, *running.values()):
                    os.close(descriptor)
                _become(asks, server, given, **json.loads(text))
            running[pid] = status
            _tell(status, pid)
            for descriptor in given:
                os.close(descriptor)


def _tell_ended(running: dict[int, int]) -> None:
    """Tell the exit codes of those that have ended, and forget them."""
    for pid in list(running):
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = running.pop(pid)
            _tell(status, os.waitstatus_to_exitcode(code))
            os.close(status)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(status, f"{number}\n".encode())


def _become(
    control: socket.socket,
    server: int,
    descriptors: Sequence[int],
    *,
    target: str,
    arguments: Sequence[Any],
    cwd: str,
    env: Mapping[str, str],
    out: str,
    err: str,
    tied: bool,
) -> NoReturn:
    """This process calls `target` from here on, and ends."""
    code = 1
    try:
        os.setsid()
        if tied:
            _end_with(server)
        ForkServer.current = ForkServer((), _control=control)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for path, descriptor in ((os.devnull, 0), (out, 1), (err, 2)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        module, _, name = target.partition(":")
        code = getattr(importlib.import_module(module), name)(*arguments, *descriptors) or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
