"""Addresses of this machine."""

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
_UNCLAIMED = range(20_000, 32_000)
"""Ports between those of a cluster's workers (10,002 to 19,999) and those of connections (from 32,768)."""
_TRIES = 100


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens at `address`; port 0: any that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def free_port(host: str = LOOPBACK) -> int:
    """A free TCP port of `host` that neither the system nor a cluster hands out.

    Raises OSError where there is none. A port chosen by the system would be riskier: before the server
    listens there, the system may give it to any other connection.
    """
    for port in random.SystemRandom().sample(_UNCLAIMED, _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError(
        f"{host}: none of {_TRIES} ports tried from {_UNCLAIMED.start} to {_UNCLAIMED.stop} is free."
    )


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on `port` of `host` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
    return True


class HeldPort:
    """A port of `host` that stays free for a server until `close`: bound, and never listened on.

    A server that sets SO_REUSEADDR, as servers do, may listen there, and so may the one that replaces it.
    `free_port` promises less: between its look and the server's start another process may come first.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number = int(self._socket.getsockname()[1])

    def __enter__(self) -> "HeldPort":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the port up."""
        self._socket.close()
