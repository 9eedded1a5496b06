"""The processes in which rewards run: one that imports them, and forks those that build and use them.

The first is started by `RewardForkServer` with two descriptors, a socket and a leash. Frames
are 8 bytes of length and a pickle. The first frames in: the limit of memory, the contents of the plugin
files, and the parts; then commands. Command 0 comes with a socket and a leash for the child that is forked,
and is answered by the child's process id; any other number is that of a child that has ended, answered by how
it did (`os.wait`), or None.

A child sends None, or a Failure, when it has built the rewards, and then answers one frame a group. Nothing
is built before the fork, so that no connection, thread or random state of a reward is shared. Imports no
torch, unless a reward does.
"""

import fcntl
import gc
import os
import pickle
import resource
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rlcore.api.errors import PluginError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import install_plugin_files
from rlcore.rollout.reward_mix import RewardMix
from rlcore.rollout.score_check import Failure, failure_of

_LENGTH = struct.Struct("!Q")
COMMAND = struct.Struct("!q")


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
    """Serve until the pool closes the connection. Arguments: the descriptors of socket and leash."""
    control = socket.socket(fileno=int(sys.argv[1]))
    leash = int(sys.argv[2])
    _tie_to_parent(leash)
    memory_gib: float | None = receive_frame(control)
    parts, failure = _loaded(control)
    gc.collect()
    gc.freeze()  # what is imported stays shared with the children
    connection = _nurse(control)
    if connection is not None:
        os.close(leash)
        if memory_gib is not None:
            limit = int(memory_gib * (1 << 30))
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # what is allocated, not what is mapped
        _work(connection, parts, failure)


def _loaded(control: socket.socket) -> tuple[Sequence[RewardPart], Failure | None]:
    """The rewards, imported but not built; or what every child will say instead."""
    try:
        install_plugin_files(receive_frame(control))
        parts: Sequence[RewardPart] = receive_frame(control)
        for part in parts:
            part.load()
    except PluginError as error:
        return (), Failure(kind="build", reason=str(error))
    except Exception as error:
        failure = failure_of(error)
        return (), replace(failure, reason=f"The rewards cannot be built: {failure.reason}.")
    return parts, None


def _nurse(control: socket.socket) -> socket.socket | None:
    """Fork and reap as the pool commands: in a child its own connection, here None once the pool is gone."""
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, COMMAND.size, 2)
        if not command:
            _reap_all()
            return None
        pid = COMMAND.unpack(command)[0]
        if pid:
            send_frame(control, _ended(pid))
            continue
        connection, leash = descriptors
        if not os.fork():
            os.setsid()
            _tie_to_parent(leash)
            send_frame(control, os.getpid())  # only now can the whole group be killed by its number
            control.close()
            return socket.socket(fileno=connection)
        os.close(connection)
        os.close(leash)


def _ended(pid: int) -> int | None:
    """How a child ended; None for one of a fork_server that was before this one."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _reap_all() -> None:
    """Wait for the children, which the pool has killed."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _work(connection: socket.socket, parts: Sequence[RewardPart], failure: Failure | None) -> None:
    """Build the rewards, then answer group by group until the connection is closed."""
    try:
        mix = RewardMix(parts) if failure is None else None
    except PluginError as error:
        mix, failure = None, Failure(kind="build", reason=str(error))
    send_frame(connection, failure)
    if mix is None:
        return
    while True:
        try:
            samples = receive_frame(connection)
        except EOFError:
            return
        send_frame(connection, mix.score(samples))
