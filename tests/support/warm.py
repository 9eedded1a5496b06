"""pytest's workers, and what they fork, come from one process that has done the imports once."""

import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import command
import forked_python

from rlcore_machine import ForkServer
from rlcore_testing import ranks

OF_TESTS = ("anthropic", "openai", "reasoning_gym")
"""What tests import beside, and what takes more than half a second."""


def import_all(names: bytes) -> None:
    """Where a warning is an error, as in the tests: what fails is left to the test that needs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in json.loads(names):
            try:
                importlib.import_module(name)
            except Exception:
                continue


class WarmWorkers:
    """The server of one session of pytest."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        content = json.dumps([*command.preloaded(), *OF_TESTS]).encode()
        self._server = ForkServer((), command.VARIABLES, prepare=(f"{__name__}:import_all", content))

    def lead(self, specs: Iterable[Any]) -> None:
        """Have the Python of each of execnet's `specs` forked."""
        for number, spec in enumerate(specs):
            address = str(Path(self._folder.name) / str(number))
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(address)
                listener.listen()
                self._server.fork(f"{__name__}:work", (), [listener.fileno()], env=os.environ, prints=True)
            spec.python = f"{sys.executable} -S {forked_python.__file__} {address}"

    def close(self) -> None:
        """End them all."""
        self._server.close()
        self._folder.cleanup()


def work(prepared: None, listening: int) -> int:
    """Be the Python that is asked for."""
    # A fork of this process, which has one thread yet, and none of pytest's state.
    own = ForkServer(("pytest",))
    ForkServer.current = None
    ranks._servers.append(own)
    with socket.socket(fileno=listening) as listener:
        line, _ = listener.accept()
    with line:
        program, files, _, _ = socket.recv_fds(line, 65536, 3)
        for descriptor, file in enumerate(files):
            os.dup2(file, descriptor)
            os.close(file)
        sys.stdin = os.fdopen(0, closefd=False)
        code = _run(program.decode())
        with contextlib.suppress(BrokenPipeError):
            line.send(str(code).encode())
    return code


def _run(program: str) -> int:
    try:
        exec(program, {"__name__": "__main__"})
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0
