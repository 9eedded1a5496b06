"""`ConnectedProcess`: a forked process that is talked to in pickles, each behind its length.

`ConnectedForks` makes them.
"""

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from rlcore_machine.fork_server import Forked, ForkServer

LENGTH = struct.Struct("!Q")
"""How many bytes the pickle behind it has."""
MAX_READ = 1 << 20
"""Bytes that are taken from a connection at once."""


def message(content: object) -> bytes:
    """What is sent for `content`."""
    pickled = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(pickled)) + pickled


class ConnectedProcess:
    """A forked process, a session of its own. It ends with this process, however this one ends."""

    def __init__(self, process: Forked, connection: socket.socket) -> None:
        # The event loop takes no other sockets.
        connection.setblocking(False)
        self._process = process
        self._connection = connection

    async def send(self, messages: bytes) -> None:
        """Raises OSError where it is gone. `messages`: of `message`."""
        import asyncio  # the process at the other end does without

        await asyncio.get_running_loop().sock_sendall(self._connection, messages)

    async def receive(self) -> Any:
        """What it sends next. OSError or EOFError where it is gone."""
        (length,) = LENGTH.unpack(await self._read(LENGTH.size))
        return pickle.loads(await self._read(length))

    async def _read(self, size: int) -> bytes:
        import asyncio

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
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(limit_s)
        return None

    def kill(self) -> None:
        """End it, and all that it started; one that is not there yet ends with its fork server."""
        if self.is_forked:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wake(self) -> None:
        """Let who waits for its answer wait no longer."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give its descriptor back, when nobody uses the connection any more."""
        self._connection.close()


class ConnectedForks:
    """Forks connected processes that print into this one's errors. Thread-safe.

    A fork server that dies is started anew. `prepare`: as of `ForkServer`. `target`: what a process calls, a
    `module:function`, with what `prepare` returned, `arguments` and the descriptor of its connection.
    """

    def __init__(self, prepare: tuple[str, bytes], target: str, arguments: Sequence[Any] = ()) -> None:
        self._prepare, self._target, self._arguments = prepare, target, arguments
        self._lock = threading.Lock()
        self._server: ForkServer | None = None
        self._stopped = False

    def fork(self) -> ConnectedProcess | None:
        """A new process; None once this was stopped. OSError where descriptors or memory run out."""
        with self._lock:
            if self._stopped:
                return None
            if self._server is None or not self._server.is_running():
                self._end()
                self._server = ForkServer((), prepare=self._prepare)
            near, far = socket.socketpair()
            # What is forked gets a copy. With this one open too, the end of the process would not close the
            # connection.
            with far:
                try:
                    child = self._server.fork(
                        self._target, self._arguments, [far.fileno()], prints=True, outlives_signals=True
                    )
                except OSError:
                    near.close()
                    raise
            return ConnectedProcess(child, near)

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
