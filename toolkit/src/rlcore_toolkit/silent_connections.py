"""Close connections that send no request: aiohttp's server would wait for one forever."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

SILENT_S = 60.0
"""Seconds that a connection may take until its first request.

It is closed at most half as long after that.
"""

KEEPALIVE_S = 75.0
"""Seconds that a connection may be idle after a request."""


class Server(Protocol):
    """aiohttp's `web.Server`."""

    @property
    def connections(self) -> Sequence[Any]:
        """The open connections."""


class SilentConnections:
    """Closes connections to a server that send no request in time, so that they cannot exhaust it.

    Call `note` for every request. `watch` runs until it is cancelled.
    """

    def __init__(self, limit_s: float = SILENT_S) -> None:
        self._limit_s = limit_s
        self._asked: set[Any] = set()

    def note(self, connection: Any) -> None:
        """Note a request on the connection (`request.protocol`)."""
        self._asked.add(connection)

    async def watch(self, server: Server | None) -> None:
        """Close silent connections of `server`, again and again. `server`: of a runner that is set up."""
        assert server is not None, "the runner is set up"
        opened: dict[Any, float] = {}
        while True:
            await asyncio.sleep(self._limit_s / 4)
            now, connections = time.monotonic(), set(server.connections)
            self._asked &= connections
            opened = {connection: opened.get(connection, now) for connection in connections - self._asked}
            for connection, since in opened.items():
                if now - since > self._limit_s and connection.transport is not None:
                    connection.transport.abort()
