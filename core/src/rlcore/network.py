"""Addresses of this machine."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens at `address`; port 0: any that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def loopback_interface(address: str) -> str | None:
    """The network interface of `address`, an IP address, where that is one of the loopback."""
    if not ipaddress.ip_address(address).is_loopback:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    return None


def own_address(host: str) -> str:
    """The address by which this machine reaches `host`; nothing is sent."""
    family, *_, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
