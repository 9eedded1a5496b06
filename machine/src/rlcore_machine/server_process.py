"""`ServerProcess`: one server in its own session, its log in a file, and no orphan ever."""

import contextlib
import http.client
import math
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from rlcore_machine import process_guard
from rlcore_machine.fork_server import Forked, ForkServer

POLL_S = 0.1
HEALTH_LIMIT_S = 30.0
TAIL_LINES = 15


class ServerProcess:
    """A server command under a guard process that ends it, with every descendant, when this process ends.

    `env` is added to this process's environment. `log_path` is created readable by its owner only and
    receives stdout and stderr. `name` is what errors call the server, and `error` their class. Thread-safe it
    is not.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        log_path: str | Path,
        env: Mapping[str, str] | None = None,
        grace_s: float = 10.0,
        error: type[Exception] = RuntimeError,
    ) -> None:
        self.name = name
        self.log_path = Path(log_path)
        self._argv = list(argv)
        self._env = dict(env or {})
        self._grace_s = grace_s
        self._error = error
        self._guard: subprocess.Popen[bytes] | Forked | None = None
        self._leash = -1
        self._stopped = False

    def start(self) -> None:
        """Starts the command; returns at once. Raises `error` where it cannot be started."""
        assert self._guard is None, "a ServerProcess starts once"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        read, self._leash = os.pipe()  # its end is the guard's order to end what it runs
        env = {**os.environ, **self._env}
        descriptor = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._guard = self._forked(read, env) or subprocess.Popen(
                [sys.executable, "-P", process_guard.__file__, str(self._grace_s), *self._argv],
                stdin=read,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._leash)
            raise self._error(f"The {self.name} server cannot be started: {error}.") from error
        finally:
            os.close(descriptor)
            os.close(read)

    def _forked(self, leash: int, env: Mapping[str, str]) -> Forked | None:
        """A module that this Python runs is forked where there is a process that has its imports."""
        server, module = ForkServer.current, [sys.executable, "-P", "-m"]
        if server is None or self._argv[:3] != module:
            return None
        target = f"{process_guard.__name__}:{process_guard.guard_module.__name__}"
        arguments = [self._grace_s, *self._argv[3:]]
        return server.fork(target, arguments, [leash], env=env, out=self.log_path, tied=False)

    @property
    def pid(self) -> int:
        """The guard's process id: the root of the server's process tree."""
        assert self._guard is not None, "the server has not been started"
        return self._guard.pid

    def exit_code(self) -> int | None:
        """None while the server runs; 128 + signal where one ended it, negative where the guard's end did."""
        assert self._guard is not None, "the server has not been started"
        return self._guard.poll()

    def check(self) -> None:
        """Raises `error` with the end of the log where the server has ended; before its start, nothing."""
        code = None if self._guard is None else self.exit_code()
        if code is not None:
            raise self._error(
                f"The {self.name} server ended with exit code {code}; "
                f"the end of {self.log_path}:\n{self.tail()}"
            )

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of the log."""
        size = self.log_path.stat().st_size
        with self.log_path.open("rb") as log:
            log.seek(max(0, size - 64 * 1024))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    def wait_ready(
        self, url: str, *, limit_s: float, token: str | None = None, stopped_s: float = math.inf
    ) -> None:
        """Returns once GET `url` answers 200. Raises `error` when the server ends or the limit passes.

        Also where one of its processes is stopped, as by SIGSTOP, for `stopped_s` seconds.
        """
        deadline = time.monotonic() + limit_s
        moved = looked = time.monotonic()
        while not _answers(url, token, timeout_s=min(HEALTH_LIMIT_S, limit_s, stopped_s)):
            self.check()
            now = time.monotonic()
            # Once a second: it takes milliseconds to look at all processes of the host.
            if stopped_s < math.inf and now >= looked + 1:
                looked = now
                if not _is_stopped(self.pid):
                    moved = now
                elif now - moved > stopped_s:
                    raise self._error(
                        f"A process of the {self.name} server has been stopped for {stopped_s:g} s, while it "
                        f"started; the end of {self.log_path}:\n{self.tail()}"
                    )
            if now > deadline:
                raise self._error(
                    f"The {self.name} server was not ready within {limit_s:g} s; "
                    f"the end of {self.log_path}:\n{self.tail()}"
                )
            time.sleep(POLL_S)
        self.check()

    def stop(self) -> None:
        """Ends the server and its descendants: SIGTERM, the grace time, SIGKILL. May be called again."""
        if self._guard is None or self._stopped:
            return
        self._stopped = True
        os.close(self._leash)
        try:
            self._guard.wait(self._grace_s + 10.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        _kill_session(self._guard.pid)

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _kill_session(session: int) -> None:
    """Kill the rest of the session, which a guard leaves behind if it was killed itself."""
    for process in _session(session):
        with contextlib.suppress(PermissionError, psutil.NoSuchProcess):
            process.kill()


def _is_stopped(session: int) -> bool:
    """Whether a process of the session is stopped, as SIGSTOP does it."""
    for process in _session(session):
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                return True
    return False


def _session(session: int) -> Iterator[psutil.Process]:
    """The processes of a session."""
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session:
                yield process


def _answers(url: str, token: str | None, *, timeout_s: float) -> bool:
    """Whether `url` answers 200. No proxy: the server is ours, and near."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):  # the latter: another program has taken the port
        return False
