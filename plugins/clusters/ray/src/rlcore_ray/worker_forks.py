"""The workers of a Ray of the run's own, forked from a process that has their imports.

Ray starts this file in place of its `default_worker.py`. As a program it imports nothing but the standard
library: it asks for the fork that is the worker, and ends.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlcore_machine import ForkServer

SOCKET = "forks"
"""The name of the socket, beside Ray's folder."""
_MAX_REQUEST = 2**17
_FOLDER = "--temp-dir="
_FORKED = b"forked"


class WorkerForks:
    """Has `server` fork a worker for each request that comes through a socket in `folder`."""

    def __init__(self, server: "ForkServer", folder: Path) -> None:
        """`folder`: the only one who may enter it is this process's user."""
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._serve, name="ray-worker-forks", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            # Too long an environment: who asks for the fork becomes the worker itself.
            with connection, contextlib.suppress(OSError, ValueError):
                request = json.loads(connection.recv(_MAX_REQUEST))
                self._server.fork(
                    f"{__name__}:{work.__name__}",
                    [request["arguments"]],
                    env=request["environment"],
                    cwd=Path(request["folder"]),
                )
                connection.send(_FORKED)

    def close(self) -> None:
        """Fork no more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def work(arguments: list[str]) -> None:
    """Be Ray's worker: called in the fork. The fork server has imported no Ray, which survives no fork."""
    import runpy

    import ray

    sys.argv = [str(Path(ray.__file__).parent / "_private" / "workers" / "default_worker.py"), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _is_forked(arguments: list[str]) -> bool:
    """Ask for the fork."""
    folder = next(text.removeprefix(_FOLDER) for text in arguments if text.startswith(_FOLDER))
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(os.path.join(os.path.dirname(folder), SOCKET))
        with contextlib.suppress(OSError):  # too long
            connection.send(json.dumps(request).encode())
            return connection.recv(len(_FORKED)) == _FORKED
    return False


if __name__ == "__main__" and not _is_forked(sys.argv[1:]):
    sys.path.pop(0)  # the folder of this file
    work(sys.argv[1:])
