"""`ForkServer`: a process that has imported what takes seconds, and forks processes that need it."""

import atexit
import contextlib
import ctypes
import fcntl
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
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

from rlcore_machine.heap import defer_collection, settle_heap
from rlcore_machine.signals import end_process

_MAX_REQUEST = 2**17
_MAX_DESCRIPTORS = 8
_STOP_SECONDS = 2.0
_KEEPS_CUDA_OUT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Have torch look for GPUs without starting CUDA: a process forked after that cannot use it."""
_PR_SET_NAME = 15
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What tells a program to end. systemd sends it to all processes of a job, whose driver saves first."""


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
        """Its process id, once it is there. ProcessLookupError if it could not be forked."""
        with self._lock:
            if self._pid is None:
                self._pid = self._next()
            if self._pid is None:
                raise ProcessLookupError("The fork server has ended.")
            return self._pid

    def started(self, timeout: float | None) -> bool:
        """Whether it is known within the time that it is there, or that it could not be forked."""
        return self._pid is not None or bool(_readable([self._status], timeout))

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
        """Like `os.kill`, as soon as the process is there; does nothing once it has ended."""
        if self.started(0):
            self._send(number)
        else:  # beside the caller: a fork server that is stopped forks nothing, for ever
            threading.Thread(target=self._send, args=(number,), daemon=True).start()

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            pid = self.pid  # waits for it
            if self.poll() is None:
                os.kill(pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if not self.started(timeout):
            return None
        with contextlib.suppress(ProcessLookupError):
            _ = self.pid  # comes first
        if self._code is None and _readable([self._status], timeout):
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

    current: "ClassVar[ForkServer | None]" = None
    """The one that forked this process, which may ask it as well."""

    def __init__(
        self,
        preload: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        prepare: tuple[str, bytes] | None = None,
        _control: socket.socket | None = None,
    ) -> None:
        """`preload`: modules; one that cannot be imported is left to the process that needs it.

        `env`: variables for the imports, beside those of this process. `prepare`: a `module:function` and the
        content that it is called with, once, in the server; what it returns is the first argument of all that
        is forked. Without it, a process that was forked itself forks its server, which has its imports.
        """
        self._server: subprocess.Popen[bytes] | int | None = None
        if _control is not None:
            self._control = _control
            return
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        leash, self._leash = os.pipe()
        try:
            if prepare is None and ForkServer.current:
                self._server = self._forked(far, leash, preload)
            else:
                self._server = self._started(far, leash, preload, env or {}, prepare)
        finally:
            far.close()
            os.close(leash)

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
        prints: bool = False,
        tied: bool = True,
        outlives_signals: bool = False,
    ) -> Forked:
        """A process, in a session of its own, that calls `target`, `module:function`.

        It is called with `arguments`, which must be JSON, and its own copies of `descriptors`; the exit code
        is what it returns. `env`: the whole environment in place of the server's, which libraries have read,
        but for what keeps CUDA out.
        `out`, `err`: files that its output is added to; else it is lost, unless it `prints`: into the errors
        of the process that started the server. `outlives_signals`: `ENDING` do nothing to it, for its owner
        ends it; what it starts itself takes them as usual.
        """
        request = {
            "target": target,
            "arguments": list(arguments),
            "cwd": str(cwd or Path.cwd()),
            "env": None if env is None else {**_KEEPS_CUDA_OUT, **env},
            "out": str(out or os.devnull),
            "err": str(err or out or os.devnull),
            "prints": prints,
            "tied": tied,
            "outlives_signals": outlives_signals,
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
        """The process id of the server that this object started."""
        assert self._server is not None, "it runs, and is not that of another process"
        return self._server if isinstance(self._server, int) else self._server.pid

    def is_running(self) -> bool:
        """Whether the server that this object started has not ended."""
        if isinstance(self._server, int):
            return os.waitid(os.P_PID, self._server, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        return self._server is not None and self._server.poll() is None

    def close(self) -> None:
        """End it, and with it what is tied to it. May be called again."""
        server = self._server
        if server is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        if self.is_running():
            descriptor = os.pidfd_open(self.pid)
            os.kill(self.pid, signal.SIGTERM)  # which it ignores once it serves: it ends in order then
            if not _readable([descriptor], _STOP_SECONDS):
                os.kill(self.pid, signal.SIGKILL)
            os.close(descriptor)
        if isinstance(server, int):
            os.waitpid(server, 0)
        else:
            server.wait()
        self._server = None
        self._control.close()
        os.close(self._leash)

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(
        self,
        far: socket.socket,
        leash: int,
        preload: Sequence[str],
        env: Mapping[str, str],
        prepare: tuple[str, bytes] | None,
    ) -> subprocess.Popen[bytes]:
        command = "import sys; from rlcore_machine.fork_server import main; main(*sys.argv[1:])"
        target, content = prepare or ("", b"")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # what this process imports from
        with os.fdopen(os.memfd_create("fork server"), "w+b") as file:
            file.write(content)
            file.seek(0)
            descriptors = far.fileno(), leash, file.fileno()
            return subprocess.Popen(
                [sys.executable, "-P", "-c", command, *map(str, descriptors), target, *preload],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=2,  # this process's stdout may be a table, or JSON
                # Those that are forked take turns on the same cores: who waits spins for microseconds only.
                env={**os.environ, "PYTHONPATH": path, "GOMP_SPINCOUNT": "1500", **_KEEPS_CUDA_OUT, **env},
                start_new_session=True,
            )

    def _forked(self, far: socket.socket, leash: int, preload: Sequence[str]) -> int:
        """This process has imports behind it already, so its own server is a fork of it."""
        pid = os.fork()
        if not pid:
            try:
                self._control.close()
                os.close(self._leash)
                os.setsid()
                _serve(far, leash, preload)
            finally:
                os._exit(0)
        return pid


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show for this process; 15 characters."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def main(control: str, leash: str, content: str, prepare: str, *preload: str) -> None:
    """The server, where it is a program."""
    with open(int(content), "rb") as file:
        _serve(socket.socket(fileno=int(control)), int(leash), preload, (prepare, file.read()))


def _readable(descriptors: Sequence[int], timeout: float | None) -> set[int]:
    """Those with something to read, or whose other end is closed, within the seconds.

    Not by `select`, which refuses descriptors from 1024 on.
    """
    polled = select.poll()
    for descriptor in descriptors:
        polled.register(descriptor, select.POLLIN)
    return {ready for ready, _ in polled.poll(None if timeout is None else 1000 * timeout)}


def _end_with(leash: int) -> None:
    """Have the kernel kill this process group once nobody holds the other end of the pipe `leash`.

    No thread could do it: a library may hold the interpreter's lock for ever, as a regular expression does.
    Nor `PR_SET_PDEATHSIG`: it goes by the thread that started this process, and spares what this one starts.
    Each process opens the pipe anew, and keeps it open: forks share an open file, and it has one owner to
    kill.
    """
    own = os.open(f"/proc/self/fd/{leash}", os.O_RDONLY)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC)
    os.close(leash)
    if _readable([own], 0):  # it ended before
        os._exit(1)


def _serve(
    control: socket.socket, leash: int, preload: Sequence[str], prepare: tuple[str, bytes] = ("", b"")
) -> None:
    _end_with(leash)
    name_process("fork-server")
    defer_collection()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to all; the owner ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for name in preload:
        with contextlib.suppress(Exception):  # whoever needs it says so
            importlib.import_module(name)
    target, content = prepare
    known = (_resolved(target)(content),) if target else ()
    dynamo = sys.modules.get("torch._dynamo.utils")
    if table := getattr(dynamo, "dump_compile_times", None):
        atexit.unregister(table)  # 30 ms in each fork, and nobody reads it
    settle_heap()
    for number in (signal.SIGTERM, signal.SIGHUP):  # from here on the owner's end of `control` ends it
        signal.signal(number, signal.SIG_IGN)
    # `poll` goes on after a signal's handler (PEP 475), so SIGCHLD wakes it by writing a byte.
    woken, wakes = socket.socketpair()
    woken.setblocking(False)
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    asked, asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # of those that are forked
    tie, held = os.pipe()  # this process alone holds `held`
    running: dict[int, _Running] = {}
    while True:
        readable = _readable([control.fileno(), asked.fileno(), woken.fileno()], None)
        if woken.fileno() in readable:
            woken.recv(4096)
            _tell_ended(running)
        for requests in (requests for requests in (control, asked) if requests.fileno() in readable):
            text, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST, _MAX_DESCRIPTORS)
            if not text:  # the owner's end
                _end_tied(running)
                signal.set_wakeup_fd(-1)  # `wakes` is closed on the way out, and one of the others may end
                return
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)  # a program that is started would hold it open
            status, *passed = descriptors
            request = json.loads(text)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                # What it inherits of the server would keep a pipe or a socket open after its other end has
                # gone, and who waits for that end would wait for ever.
                for inherited in (control, asked, woken, wakes):
                    inherited.close()
                for descriptor in (status, held, *(other.status for other in running.values())):
                    os.close(descriptor)
                _become(asks, tie, known, passed, **request)
            running[pid] = _Running(status, request["tied"])
            _tell(status, pid)
            for descriptor in passed:
                os.close(descriptor)


def _resolved(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


class _Running(NamedTuple):
    """A process that the server has forked. `status`: where its exit code is told."""

    status: int
    tied: bool


def _end_tied(running: Mapping[int, _Running]) -> None:
    """Kill the tied processes, and wait for them: otherwise they stay as zombies."""
    tied = [pid for pid, process in running.items() if process.tied]
    for pid in tied:
        for end in (os.killpg, os.kill):  # one that was just forked leads no group yet
            with contextlib.suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)
    for pid in tied:
        os.waitpid(pid, 0)


def _tell_ended(running: dict[int, _Running]) -> None:
    """Tell the exit codes of those that have ended, and forget them."""
    for pid in list(running):
        ended, code = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = running.pop(pid).status
            _tell(status, os.waitstatus_to_exitcode(code))
            os.close(status)


def _tell(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        os.write(status, f"{number}\n".encode())


def _outlive_signals() -> None:
    # Handlers, unlike SIG_IGN, are not passed on to a program that is started.
    before = {number: signal.signal(number, lambda *_: None) for number in ENDING}
    os.register_at_fork(after_in_child=lambda: [signal.signal(*pair) for pair in before.items()])


def _become(
    control: socket.socket,
    tie: int,
    known: Sequence[Any],
    descriptors: Sequence[int],
    *,
    target: str,
    arguments: Sequence[Any],
    cwd: str,
    env: Mapping[str, str] | None,
    out: str,
    err: str,
    prints: bool,
    tied: bool,
    outlives_signals: bool,
) -> NoReturn:
    """This process calls `target` from here on, and ends."""
    code = 1
    try:
        os.setsid()
        if tied:
            _end_with(tie)
        else:
            os.close(tie)
        ForkServer.current = ForkServer((), _control=control)
        # The end of this process finalizes what it has made, not what its server has: torch's takes 50 ms.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in ENDING:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if outlives_signals:
            _outlive_signals()
        os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        for path, descriptor in ((os.devnull, 0),) if prints else ((os.devnull, 0), (out, 1), (err, 2)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        code = _resolved(target)(*known, *arguments, *descriptors) or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)
