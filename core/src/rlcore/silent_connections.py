"""Connections on which nobody asks: aiohttp's server waits for a first request for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

SILENT_S = 60.0
"""Seconds that a connection may take to its first request; it is closed up to half as many later."""

KEEPALIVE_S = 75.0
"""Seconds that one may be idle after a request."""


class SilentConnections:
    """Closes the connections to a server that bring no request in time, so that they cannot use it up.

    Its `middleware` must see every request; `watch` goes on until it is cancelled.
    """

    def __init__(self, limit_s: float = SILENT_S) -> None:
        self._limit_s = limit_s
        self._asked: set[Any] = set()

    @property
    def middleware(self) -> Middleware:
        """For the application of the server."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._asked.add(request.protocol)
            return await handler(request)

        return note

    async def watch(self, runner: web.AppRunner) -> None:
        """Close what is silent, for as long as `runner` serves."""
        assert runner.server is not None, "the runner is set up"
        opened: dict[Any, float] = {}
        while True:
            await asyncio.sleep(self._limit_s / 4)
            now, connections = time.monotonic(), set(runner.server.connections)
            self._asked &= connections
            opened = {one: opened.get(one, now) for one in connections - self._asked}
            for one, since in opened.items():
                if now - since > self._limit_s and one.transport is not None:
                    one.transport.abort()
