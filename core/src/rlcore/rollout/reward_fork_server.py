"""`RewardForkServer`: a process that has imported the rewards forks those that compute them."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rlcore.api.errors import RunError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import PluginFile
from rlcore.rollout import reward_worker
from rlcore.rollout.reward_worker import LENGTH
from rlcore_machine import Forked, ForkServer

START_LIMIT_S = 120.0
"""Seconds to import the rewards, and to build them."""
MAX_READ = 1 << 20
"""Bytes that are taken from a connection at once."""


class RewardProcess:
    """A forked process, a session of its own. It ends with this process, however this one ends."""

    def __init__(self, process: Forked, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._process = process
        self._connection = connection

    async def send(self, messages: bytes) -> None:
        """Raises OSError where it is gone. `messages`: of `rlcore.rollout.reward_worker.message`."""
        await asyncio.get_running_loop().sock_sendall(self._connection, messages)

    async def receive(self) -> Any:
        """What it sends next. OSError or EOFError where it is gone."""
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        return pickle.loads(await self._read(length))

    async def _read(self, size: int) -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        while len(received) < size:
            piece = await loop.sock_recv(self._connection, min(size - len(received), MAX_READ))
            if not piece:
                raise EOFError("the process closed the connection")
            received += piece
        return bytes(received)

    @property
    def is_forked(self) -> bool:
        """Whether the fork server has done its part."""
        return self._process.started(0)

    def exit_code(self, limit_s: float) -> int | None:
        """The exit code as `subprocess` gives it; None if the process does not end within the limit."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def kill(self) -> None:
        """End it, and all that it started; one that is not there yet ends with its fork server."""
        if self.is_forked:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wake(self) -> None:
        """Let who waits for its answer wait no longer."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptor back, when nobody uses the connection any more."""
        self._connection.close()


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
        self._content = b"".join(map(pickle.dumps, (tokenizer, tuple(plugin_files), tuple(parts))))
        self._memory_gib = memory_gib
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._stopped = False

    def fork(self) -> RewardProcess:
        """A new process, which is building the rewards. RunError where the server was stopped."""
        with self._lock:
            if self._stopped:
                raise RunError("The reward pool has been stopped.")
            if self._server is not None and not self._server.is_running():
                self._end()
            name = reward_worker.__name__
            if self._server is None:
                self._server = ForkServer((), prepare=(f"{name}:imported", self._content))
            near, far = socket.socketpair()
            with far:
                process = self._server.fork(f"{name}:work", [self._memory_gib], [far.fileno()], prints=True)
            return RewardProcess(process, near)

    def renew(self) -> None:
        """End a fork server that hangs, and with it its processes; the next fork starts another one."""
        with self._lock:
            self._end()

    def stop(self) -> None:
        """Fork no more, and end all that was forked. May be called again."""
        with self._lock:
            self._stopped = True
            self._end()

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
