"""The processes in which rewards run: a fork server imports them, and its forks build and use them.

`RewardForkServer` starts the fork server with three descriptors: a socket for commands, a leash, and a file
of four pickles (the limit of memory, the directory of the tokenizer, the plugin files, the parts). A command
is one pickled number, and so is its answer. FORK comes with a socket for the child; the answer is the child's
process id. Any other number is the process id of a child that has ended; the answer is its status
(`os.wait`), or None.

A child sends None, or a Failure, when it has built the rewards. Then it answers group by group, all in
pickles. It builds after the fork, so that no connection, thread or random state of a reward is shared.
Imports no torch, unless a reward does.

Why not `multiprocessing` with its fork server? Its start has no time limit. It swallows an ImportError, and
imports `__main__` again. A process has only one, for all runs. When the driver is killed, a worker that holds
the interpreter's lock lives on.
"""

import fcntl
import gc
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO

from rlcore.api.errors import PluginError, UserError
from rlcore.api.part import RewardPart
from rlcore.api.plugin_file import install_plugin_files
from rlcore.api.tokens import Tokenizer, load_tokenizer
from rlcore.plugins.function_reward import asks_for_tokenizer
from rlcore.rollout.reward_mix import RewardMix
from rlcore.rollout.score_check import Failure, failure_of

FORK = 0
"""The command to fork a child; any other is a process id."""

MESSAGE_BYTES = 64
"""More than a command or an answer has."""


def main() -> None:
    """Serve until the pool closes the connection. Arguments: the descriptors of socket, leash and file."""
    control, leash, setup = map(int, sys.argv[1:])
    _tie_to_driver(leash)
    with open(setup, "rb") as file:
        memory_gib: float | None = pickle.load(file)
        parts, tokenizer, failure = _imported(file)
    gc.collect()
    gc.freeze()  # what is imported stays shared with the children
    with socket.socket(fileno=control) as commands:
        connection = _serve(commands, leash)
    os.close(leash)
    if connection is not None:
        if memory_gib is not None:
            limit = int(memory_gib * (1 << 30))
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # what is allocated, not what is mapped
        _work(connection, parts, tokenizer, failure)


def _tie_to_driver(leash: int) -> None:
    """Lets the kernel kill this process group when the driver, which holds the leash's other end, is gone.

    A thread could not: a reward may hold the interpreter's lock for ever (a regular expression does). Each
    process opens the leash anew, and keeps it open: forks share an open file, and it has one owner to kill.
    """
    own = os.open(f"/proc/self/fd/{leash}", os.O_RDONLY)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC)


def _imported(file: BinaryIO) -> tuple[Sequence[RewardPart], Tokenizer | None, Failure | None]:
    """The rewards, imported but not built, and the tokenizer where one of them asks for it; or what every

    child will say instead.
    """
    tokenizer_path: str | None = pickle.load(file)
    tokenizer = None
    try:
        install_plugin_files(pickle.load(file))
        parts: Sequence[RewardPart] = pickle.load(file)
        asking = [part.name for part in parts if asks_for_tokenizer(part)]
        if asking and tokenizer_path is None:
            raise PluginError(f"Reward {asking[0]!r} asks for a tokenizer, and there is none here.")
        if asking and tokenizer_path is not None:
            tokenizer = load_tokenizer(tokenizer_path)
    except UserError as error:
        return (), None, Failure(kind="build", reason=str(error))
    except Exception as error:
        failure = failure_of(error)
        return (), None, replace(failure, reason=f"The rewards cannot be built: {failure.reason}.")
    return parts, tokenizer, None


def _serve(control: socket.socket, leash: int) -> socket.socket | None:
    """Fork and reap as the pool commands. Returns in a child, with its connection, and here at the end."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not message:
            with suppress(ChildProcessError):  # the pool has killed all children
                while True:
                    os.wait()
            return None
        pid: int = pickle.loads(message)
        if pid != FORK:
            control.send(pickle.dumps(_status(pid)))
        elif not os.fork():
            os.setsid()
            _tie_to_driver(leash)
            control.send(pickle.dumps(os.getpid()))  # only now can the whole group be killed by its number
            os.set_inheritable(descriptors[0], False)  # a program that outlives the child would hold it open
            return socket.socket(fileno=descriptors[0])
        else:
            os.close(descriptors[0])


def _status(pid: int) -> int | None:
    """How a child ended; None for one of a fork server that was before this one."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None


def _work(
    connection: socket.socket,
    parts: Sequence[RewardPart],
    tokenizer: Tokenizer | None,
    failure: Failure | None,
) -> None:
    """Build the rewards, then answer group by group until the connection is closed."""
    try:
        mix = RewardMix(parts, tokenizer) if failure is None else None
    except PluginError as error:
        mix, failure = None, Failure(kind="build", reason=str(error))
    connection.sendall(pickle.dumps(failure))
    groups = connection.makefile("rb")
    while mix is not None:
        try:
            samples = pickle.load(groups)
        except EOFError:
            return
        connection.sendall(pickle.dumps(mix.score(samples), pickle.HIGHEST_PROTOCOL))
