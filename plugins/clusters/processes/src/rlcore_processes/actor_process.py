"""An actor that is a plain process: what runs in it, and the `Link` that calls it."""

from __future__ import annotations

import copy
import hmac
import io
import os
import pickle
import queue
import secrets
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from rlcore import ACTOR_THREADS, ActorThread, CallFailed, RlcoreError
from rlcore_machine import name_process

_CONSTRUCTED = 0
"""The number of the call that makes the object."""
_KEY_SECONDS = 2.0
"""Seconds that whoever connects has to show the key: others wait meanwhile."""


class Pickled:
    """An argument that was pickled once for several calls."""

    def __init__(self, value: Any) -> None:
        self._content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def value(self) -> Any:
        """The argument itself, in the process that was called."""
        return pickle.loads(self._content)


def open_listener() -> tuple[socket.socket, str]:
    """A socket for an actor to accept calls at, and its address, which is no file."""
    address = f"\0rlcore-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    return listener, address


class Link:
    """A connection to an actor's process. Thread-safe."""

    def __init__(self, address: str, key: str, why: Callable[[], str]) -> None:
        """`why`: why the process ended, once its connection has."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        with suppress(OSError):  # it has ended, which the reader tells
            connection.sendall(bytes.fromhex(key))
        self._connection = Connection(connection.detach())
        self._why = why
        self._lock = threading.Lock()
        self._calls: dict[int, Future[Any]] = {}
        self._number = _CONSTRUCTED
        self._gone: Exception | None = None
        # What is sent may be large, and the process may be slow to read it: neither holds up a caller.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="call")
        threading.Thread(target=self._read, daemon=True).start()

    def construct(self, cls: type, arguments: Sequence[Any]) -> None:
        """Make the actor's object: the first call. If it fails, all other calls fail with it."""
        self._send(pickle.dumps((cls, tuple(arguments)), pickle.HIGHEST_PROTOCOL))

    def call(self, method: str, arguments: Sequence[Any], thread: ActorThread | None = None) -> Future[Any]:
        """The answer; see `Actor.call`."""
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # the call can't be taken back
        with self._lock:
            if self._gone is not None:
                answer.set_exception(copy.copy(self._gone))
                return answer
            self._number += 1
            content = _message((self._number, method, thread), tuple(arguments))
            self._calls[self._number] = answer
            self._send(content)
        return answer

    def _send(self, content: bytes) -> None:
        def write() -> None:
            try:
                self._connection.send_bytes(content)
            except OSError:
                return  # it has ended, which the reader tells

        with suppress(RuntimeError):  # likewise: the reader has ended this side too
            self._writer.submit(write)

    def _read(self) -> None:
        """Hand out the answers until the process has ended."""
        gone: Exception | None = None
        while True:
            try:
                content = self._connection.recv_bytes()
            except (EOFError, OSError):
                break
            number, succeeded, value = _answer_in(content)
            if number == _CONSTRUCTED:
                gone = value
                continue
            with self._lock:
                answer = self._calls.pop(number)
            if succeeded:
                answer.set_result(value)
            else:
                answer.set_exception(value)
        gone = gone or CallFailed(f"died: {self._why()}")
        with self._lock:
            self._gone, calls = gone, list(self._calls.values())
            self._calls.clear()
        self._writer.shutdown(wait=False)
        for answer in calls:
            answer.set_exception(copy.copy(gone))


def main(name: str, key: str, listener: int) -> int:
    """The process: it ends with the one that made it, whose connection is the first."""
    name_process(name)
    server_socket = socket.socket(fileno=listener)
    while (owner := _next_connection(server_socket, key)) is None:
        pass
    try:
        cls, arguments = pickle.loads(owner.recv_bytes())
        actor = cls(*arguments)
    except Exception as error:
        owner.send_bytes(_message((_CONSTRUCTED, False), _portable_error(error)))
        return 1
    server = _Server(actor)
    threading.Thread(target=server.read, args=(owner, True), daemon=True).start()
    threading.Thread(target=_accept_others, args=(server_socket, key, server), daemon=True).start()
    server.run()
    return 0


def _next_connection(listener: socket.socket, key: str) -> Connection | None:
    """The next connection; None if the other side is another user, or doesn't show the key at once."""
    accepted, secret = listener.accept()[0], bytes.fromhex(key)
    accepted.settimeout(_KEY_SECONDS)
    try:
        _, user, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # The key was sent at once, so it comes in one piece.
        if user == os.getuid() and hmac.compare_digest(accepted.recv(len(secret)), secret):
            accepted.settimeout(None)
            return Connection(accepted.detach())
    except OSError:
        pass
    accepted.close()
    return None


def _accept_others(listener: socket.socket, key: str, server: _Server) -> None:
    while True:
        other = _next_connection(listener, key)
        if other is not None:
            threading.Thread(target=server.read, args=(other, False), daemon=True).start()


class _Server:
    """Answers calls: in their named thread, or else one after another in the main thread."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._threads = {name: ThreadPoolExecutor(count, name) for name, count in ACTOR_THREADS.items()}
        self._main: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        """Answer the calls of the main thread; never returns."""
        while True:
            self._main.get()()

    def read(self, connection: Connection, owns: bool) -> None:
        """Take the calls of a connection. When the owner's connection ends, this process ends."""
        lock = threading.Lock()
        while True:
            try:
                content = connection.recv_bytes()
            except (EOFError, OSError):
                if owns:
                    os._exit(0)
                return
            stream = io.BytesIO(content)
            number, method, thread = pickle.load(stream)
            answer = self._task(connection, lock, number, method, stream)
            if thread is None:
                self._main.put(answer)
            else:
                self._threads[thread].submit(answer)

    def _task(
        self, connection: Connection, lock: threading.Lock, number: int, method: str, stream: io.BytesIO
    ) -> Callable[[], None]:
        """`stream` has the arguments. If they cannot be read here, that call fails."""

        def answer() -> None:
            try:
                arguments = pickle.load(stream)
                values = [one.value() if isinstance(one, Pickled) else one for one in arguments]
                content = _message((number, True), getattr(self._actor, method)(*values))
            except Exception as error:
                content = _message((number, False), _portable_error(error))
            try:
                with lock:
                    connection.send_bytes(content)
            except OSError:
                return  # nobody waits for it any more

        return answer


def _message(head: tuple[Any, ...], content: Any) -> bytes:
    """Two pickles: `head` can be read in any process, also where `content` cannot."""
    stream = io.BytesIO()
    for part in (head, content):
        pickle.dump(part, stream, pickle.HIGHEST_PROTOCOL)
    return stream.getvalue()


def _answer_in(message: bytes) -> tuple[int, bool, Any]:
    """The number of the call, whether it succeeded, and its answer or error."""
    stream = io.BytesIO(message)
    number, succeeded = pickle.load(stream)
    try:
        return number, succeeded, pickle.load(stream)
    except Exception as error:  # of any class: it runs code of the answer's class
        failure = CallFailed(f"gave an answer that cannot be read here: {type(error).__name__}: {error}.")
        return number, False, failure


def _portable_error(error: Exception) -> Exception:
    """The error for the caller: rlcore's own unchanged; for any other, a text with its origin."""
    if isinstance(error, RlcoreError) and _travels(error):
        return error
    failure = CallFailed(f"failed: {type(error).__name__}: {str(error).removesuffix('.')}.")
    failure.add_note("".join(traceback.format_exception(error)))
    return failure


def _travels(error: Exception) -> bool:
    """Whether pickle carries the error. It cannot where the class takes other arguments than its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True
