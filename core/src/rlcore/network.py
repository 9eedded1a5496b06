"""Addresses of this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket

import psutil

from rlcore.api.errors import RunError

LOOPBACK = "127.0.0.1"
_UNCLAIMED = range(20_000, 32_000)
"""Above Ray's ports (10,002 to 19,999), below those that Linux takes for connections (32,768 and more)."""
_TRIES = 100


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens at `address`; port 0: any that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def free_port(host: str = LOOPBACK) -> int:
    """A TCP port of `host` that was free a moment ago, of those that neither system nor Ray hands out.

    A port that the system chose could be its choice for the next connection of any process, before the
    server that it is meant for listens. Raises `RunError` where none is found.
    """
    for port in random.SystemRandom().sample(_UNCLAIMED, _TRIES):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise RunError(
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
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Anyone may have it now."""
        self._socket.close()


def loopback_interface(address: str) -> str | None:
    """The network interface of `address`, an IP address, where that is one of the loopback."""
    if not ipaddress.ip_address(address).is_loopback:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    return None


def stay_on(address: str) -> dict[str, str]:
    """The environment by which gloo and NCCL keep to the interface of `address` where that is a loopback's.

    What the environment says already stands; empty where `address` is no loopback's.
    """
    name = loopback_interface(address)
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name else ()
    return {variable: os.environ.get(variable, str(name)) for variable in variables}


def own_address(host: str) -> str:
    """The address by which this machine reaches `host`; nothing is sent."""
    family, *_, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
