"""Connections on which nobody asks: aiohttp's server waits for a first request for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

SILENT_S = 60.0
"""Seconds that a connection may take to its first request; it is closed up to half as many later."""

KEEPALIVE_S = 75.0
"""Seconds that one may be idle after a request."""


class Server(Protocol):
    """aiohttp's `web.Server`."""

    @property
    def connections(self) -> Sequence[Any]:
        """Those that are open."""
        ...


class SilentConnections:
    """Closes the connections to a server that bring no request in time, so that they cannot use it up.

    It is told of every request (`note`); `watch` goes on until it is cancelled.
    """

    def __init__(self, limit_s: float = SILENT_S) -> None:
        self._limit_s = limit_s
        self._asked: set[Any] = set()

    def note(self, connection: Any) -> None:
        """A request has come on it (`request.protocol`)."""
        self._asked.add(connection)

    async def watch(self, server: Server | None) -> None:
        """Close what is silent on `server`, that of a runner which is set up."""
        assert server is not None, "the runner is set up"
        opened: dict[Any, float] = {}
        while True:
            await asyncio.sleep(self._limit_s / 4)
            now, connections = time.monotonic(), set(server.connections)
            self._asked &= connections
            opened = {one: opened.get(one, now) for one in connections - self._asked}
            for one, since in opened.items():
                if now - since > self._limit_s and one.transport is not None:
                    one.transport.abort()
