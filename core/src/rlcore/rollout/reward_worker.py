"""The process in which a reward runs: started by `RewardPool` with two descriptors, a socket and a leash.

Talks with the pool over a private socket pair: frames of 8 bytes length and a pickle. First frame in:
the contents of the plugin files; second: the `RewardPart`s; then one frame a group. Each but the first is
answered by one frame. Imports no torch, unless a reward does.
"""

import fcntl
import os
import pickle
import signal
import socket
import struct
import sys
from dataclasses import replace
from typing import Any

from rlcore.errors import PluginError
from rlcore.plugins.files import install
from rlcore.rollout.judge import Failure, failure_of
from rlcore.rollout.mix import Mix

_LENGTH = struct.Struct("!Q")


def send_frame(connection: socket.socket, content: object) -> None:
    """One pickled frame. Raises OSError where the other side is gone."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_frame(connection: socket.socket) -> Any:
    """The next frame, unpickled: only ever read from the other end of a private pair. EOFError at its end."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return pickle.loads(_receive_exactly(connection, length))


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, received = memoryview(data), 0
    while received < size:
        count = connection.recv_into(view[received:])
        if not count:
            raise EOFError
        received += count
    return data


def _tie_to_parent(leash: int) -> None:
    """Lets the kernel kill this process group when the parent, which holds the leash's other end, is gone.

    A thread could not: a reward may hold the interpreter's lock for ever (a regular expression does).
    """
    fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpgrp())
    if sys.platform == "linux":  # elsewhere the signal is SIGIO
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)


def main() -> None:
    """Serves until the pool closes the connection. Arguments: the descriptors of socket and leash."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _tie_to_parent(int(sys.argv[2]))
    try:
        install(receive_frame(connection))
        mix = Mix(receive_frame(connection))
    except PluginError as error:
        send_frame(connection, Failure(kind="build", reason=str(error)))
        return
    except Exception as error:
        failure = failure_of(error)
        send_frame(connection, replace(failure, reason=f"The rewards cannot be built: {failure.reason}."))
        return
    send_frame(connection, None)
    while True:
        try:
            samples = receive_frame(connection)
        except EOFError:
            return
        send_frame(connection, mix.judge(samples))
