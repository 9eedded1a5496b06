"""`FailoverClient`: requests to one engine, by whichever server lives."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rlcore.api.errors import EngineError
from rlcore.engines.client import EngineClient
from rlcore.engines.client_http import UnreachableError
from rlcore.engines.lifecycle import LostError, RunningServer, ServerLifecycle
from rlcore_machine.tasks import end_tasks

T = TypeVar("T")


class FailoverClient:
    """Sends requests to the server of one engine. `rlcore.engines.fleet` asks other engines, too."""

    def __init__(self, lifecycle: ServerLifecycle) -> None:
        self._lifecycle = lifecycle

    async def once(self, server: RunningServer, request: Awaitable[T]) -> T:
        """The result of `request`, sent to that server. LostError if the server is lost first."""
        work = asyncio.ensure_future(request)
        try:
            # A server that is gone may leave a connection open that never answers, so its end is awaited too.
            both: set[asyncio.Future[Any]] = {work, server.ended}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                try:
                    return work.result()
                except EngineError as error:
                    if not await self._lifecycle.is_lost(server, error):
                        raise
        finally:
            await end_tasks([work])
        raise self._lifecycle.loss(server)

    async def repeated(self, ask: Callable[[RunningServer], Awaitable[T]]) -> T:
        """The result of `ask` with the first server that lives long enough to give it."""
        while True:
            server = await self._lifecycle.serving()
            try:
                return await self.once(server, ask(server))
            except LostError:
                continue

    async def with_client(self, ask: Callable[[EngineClient], Awaitable[T]]) -> T:
        """The result of `ask` with the live server. If that dies, its replacement is asked again."""
        with self._lifecycle.busy():
            return await self.repeated(lambda server: ask(server.client))

    async def abort(self) -> None:
        """Like `EngineClient.abort`. Does nothing if the server is gone."""
        server = self._lifecycle.newest
        if server is None or server.ended.done():
            return
        try:
            await server.client.abort()
        except UnreachableError as error:
            if not await self._lifecycle.is_lost(server, error):
                raise

    async def weight_version(self) -> int:
        """The version of the weights that the live server would generate with now."""
        return await self.with_client(lambda client: client.weight_version())
