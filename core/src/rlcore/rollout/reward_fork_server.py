"""`RewardForkServer`: a process that has imported the rewards forks those that compute them."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from rlcore.api.errors import RunError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import PluginFile
from rlcore.rollout.reward_worker import FORK, MESSAGE_BYTES

START_LIMIT_S = 120.0
"""Seconds to import the rewards, or to build them."""

STOP_LIMIT_S = 2.0
"""Seconds that the fork server may take to end once it is told to."""

_COMMAND = "from rlcore.rollout.reward_worker import main; main()"
"""Not `python -m`: what a `__main__` module pickles cannot be unpickled by another process."""


class RewardProcess:
    """A forked process, a session of its own. It ends with this process, however this one ends."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._connection = connection
        self._answers = connection.makefile("rb")

    def send(self, content: object, limit_s: float) -> None:
        """Raises OSError where it is gone, or does not take the content in time (TimeoutError)."""
        self._connection.settimeout(limit_s)
        self._connection.sendall(pickle.dumps(content, pickle.HIGHEST_PROTOCOL))

    def receive(self, limit_s: float) -> Any:
        """What it sends next. OSError or EOFError where it is gone; TimeoutError, which is final, if late."""
        self._connection.settimeout(max(limit_s, 0.001))  # 0 would mean: do not block
        try:
            return pickle.load(self._answers)
        except pickle.UnpicklingError as error:  # it died in the middle of its answer
            raise EOFError from error

    def wait(self, limit_s: float) -> bool:
        """Whether it ends within the limit."""
        return bool(select.select([self._descriptor], [], [], limit_s)[0])

    def kill(self) -> None:
        """End it, and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wake(self) -> None:
        """Let who waits for its answer wait no longer."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptors back; once, and when nobody uses the connection any more."""
        self._answers.close()
        self._connection.close()
        os.close(self._descriptor)


class RewardForkServer:
    """Forks processes that compute the rewards of `parts`. Thread-safe.

    `plugin_files` are installed before `parts` are unpickled there. A fork server that dies is started anew.
    What a forked process allocates stays below `memory_gib`. `tokenizer`: the directory of the run's.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        plugin_files: Sequence[PluginFile],
        memory_gib: float | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self._setup = (memory_gib, tokenizer, tuple(plugin_files), tuple(parts))
        self._lock = threading.Lock()
        self._server: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._leash_end, self._leash = Pipe(duplex=False)  # never written to; this process holds `_leash`
        self._stopped = False

    def fork(self) -> RewardProcess:
        """A new process, which is building the rewards. RunError where there is none in time."""
        near, far = socket.socketpair()
        with self._lock, far:
            try:
                pid = self._ask(FORK, far.fileno())
                assert pid is not None, "a fork is answered by its number"
                return RewardProcess(pid, near)
            except BaseException:
                near.close()
                raise

    def reap(self, child: RewardProcess) -> int | None:
        """How an ended `child` ended, as `subprocess` tells it; None where nobody knows any more."""
        with self._lock, suppress(RunError):
            status = None if self._server is None else self._ask(child.pid)
            return None if status is None else os.waitstatus_to_exitcode(status)
        return None

    def stop(self) -> None:
        """Fork no more. Waits for the children, which must have been killed; may be called again."""
        self._stopped = True
        server = self._server
        if server is not None:
            process, control = server
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)  # wakes the fork server, and who waits for its answer
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
        with self._lock:
            self._end()
            self._leash_end.close()
            self._leash.close()

    def _ask(self, command: int, *descriptors: int) -> int | None:
        """The answer of the fork server, which is started if none runs. RunError if it gives none in time."""
        if self._stopped:
            raise RunError("The reward pool has been stopped.")
        try:
            self._server = self._server or self._started()
            _, control = self._server
            control.settimeout(START_LIMIT_S)
            socket.send_fds(control, [pickle.dumps(command)], descriptors)
            answer: int | None = pickle.loads(control.recv(MESSAGE_BYTES))
        except (OSError, EOFError) as error:
            self._end()
            late = f"did not answer within {START_LIMIT_S:g} s"
            what = late if isinstance(error, TimeoutError) else "ended"
            raise RunError(f"The process that forks reward workers {what}.") from error
        return answer

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        control, far = socket.socketpair(type=socket.SOCK_SEQPACKET)
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        with far, os.fdopen(os.memfd_create("reward setup"), "w+b") as setup:
            for content in self._setup:
                pickle.dump(content, setup)
            setup.seek(0)
            descriptors = far.fileno(), self._leash_end.fileno(), setup.fileno()
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a reward prints must not mix with the JSON on this process's stdout
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=descriptors,
                start_new_session=True,
            )
        return process, control

    def _end(self) -> None:
        """End the fork server, dead or alive; its children are the pool's."""
        if self._server is not None:
            process, control = self._server
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            control.close()
            self._server = None
