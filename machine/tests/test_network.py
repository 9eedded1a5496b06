"""Ports for servers."""

import socket
from pathlib import Path

import pytest

import rlcore_machine.network
from rlcore_machine.network import free_port

CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_free_port_is_none_that_a_connection_may_take() -> None:
    first, last = map(int, CONNECTIONS.read_text().split()) if CONNECTIONS.exists() else (49_152, 65_535)
    if first < 32_000:
        pytest.skip(f"this system takes ports from {first} for connections")
    assert all(not first <= free_port() <= last for _ in range(20))


def test_a_taken_port_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where its owner has only bound it, as it does before it listens."""
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        owner.bind(("127.0.0.1", 0))
        taken = owner.getsockname()[1]
        monkeypatch.setattr(rlcore_machine.network, "_UNCLAIMED", range(taken, taken + 1))
        monkeypatch.setattr(rlcore_machine.network, "_TRIES", 1)
        with pytest.raises(OSError, match=r"127\.0\.0\.1: none of 1 ports tried"):
            free_port()
