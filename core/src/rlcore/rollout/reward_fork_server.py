"""`RewardForkServer`: a process that has imported the rewards forks those that compute them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from rlcore.api.errors import RunError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import PluginFile
from rlcore.rollout.reward_worker import COMMAND, receive_frame, send_frame

START_LIMIT_S = 120.0
"""Seconds to import the rewards, or to build them."""

STOP_LIMIT_S = 2.0
"""Seconds that the fork server may take to end once it is told to."""

_COMMAND = "from rlcore.rollout.reward_worker import main; main()"
"""Not `python -m`: what a `__main__` module pickles cannot be unpickled by another process."""


class RewardProcess:
    """A forked process, a session of its own. It ends with this process, however this one ends."""

    def __init__(self, pid: int, connection: socket.socket, leash: int) -> None:
        self.pid = pid
        self.connection = connection
        self._leash = leash
        self._descriptor = os.pidfd_open(pid)

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
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptors back; once, and when nobody uses the connection any more."""
        self.connection.close()
        os.close(self._leash)
        os.close(self._descriptor)


class RewardForkServer:
    """Forks processes that compute the rewards of `parts`. Thread-safe.

    `plugin_files` are installed before `parts` are unpickled there. One that dies is started anew. What a
    forked process allocates stays below `memory_gib`.
    """

    def __init__(
        self,
        parts: Sequence[RewardPart],
        plugin_files: Sequence[PluginFile],
        memory_gib: float | None = None,
    ) -> None:
        self._parts, self._plugin_files = tuple(parts), tuple(plugin_files)
        self._memory_gib = memory_gib
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._leash = -1
        self._stopped = False

    def fork(self) -> RewardProcess:
        """A new process, which is building the rewards. RunError where there is none in time."""
        with self._lock:
            near, far = socket.socketpair()
            far_leash, leash = os.pipe()
            try:
                with far:
                    socket.send_fds(self._started(), [COMMAND.pack(0)], [far.fileno(), far_leash])
                pid = self._answer()
                assert pid is not None, "a fork is answered by its number"
                return RewardProcess(pid, near, leash)
            except (OSError, EOFError) as error:
                near.close()
                os.close(leash)
                self._end()
                late = f"did not answer within {START_LIMIT_S:g} s"
                what = late if isinstance(error, TimeoutError) else "ended"
                raise RunError(f"The process that forks reward workers {what}.") from error
            finally:
                os.close(far_leash)

    def reap(self, child: RewardProcess) -> int | None:
        """How an ended `child` ended, as `subprocess` tells it; None where nobody knows any more."""
        with self._lock:
            if self._control is None:
                return None
            try:
                self._control.sendall(COMMAND.pack(child.pid))
                status = self._answer()
                return None if status is None else os.waitstatus_to_exitcode(status)
            except (OSError, EOFError):
                self._end()
                return None

    def stop(self) -> None:
        """Fork no more. Waits for the children, which must have been killed; may be called again."""
        self._stopped = True
        with suppress(OSError):
            if self._control is not None:
                self._control.shutdown(socket.SHUT_RDWR)  # wakes it, and who waits for it
        process = self._process
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT_S)
        with self._lock:
            self._end()

    def _started(self) -> socket.socket:
        """The connection to the process, which is started where it is not running."""
        if self._stopped:
            raise RunError("The reward pool has been stopped.")
        if self._control is None:
            far_leash, self._leash = os.pipe()
            self._control, far = socket.socketpair()
            self._control.settimeout(START_LIMIT_S)
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
            with far:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _COMMAND, str(far.fileno()), str(far_leash)],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a reward prints must not mix with the JSON on this process's stdout
                    env={**os.environ, "PYTHONPATH": path},
                    pass_fds=(far.fileno(), far_leash),
                    start_new_session=True,
                )
            os.close(far_leash)
            send_frame(self._control, self._memory_gib)
            send_frame(self._control, self._plugin_files)
            send_frame(self._control, self._parts)
        return self._control

    def _answer(self) -> int | None:
        assert self._control is not None, "answered by who was asked"
        answer: int | None = receive_frame(self._control)
        return answer

    def _end(self) -> None:
        """End the process, dead or alive; its children are the pool's."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._control is not None:
            self._control.close()
            os.close(self._leash)
            self._control = None
