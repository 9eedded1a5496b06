"""`ServerLifecycle`: starts, watches and replaces the servers of one engine."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rlcore.api.errors import EngineError, RunError
from rlcore.engines.client import EngineClient, MemoryTag
from rlcore.engines.client_http import is_fault
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import OutdatedError
from rlcore_machine.tasks import end_tasks

_log = logging.getLogger(__name__)
REASON_S = 2.0
"""Seconds to wait for a watcher to say why a process died, once the death has been noticed."""


class Launcher(Protocol):
    """Starts and stops the servers of one engine. One call at a time, except `died`."""

    async def start(self) -> EngineClient:
        """A new server that answers, by its client. RunError where there is none in time."""

    async def died(self) -> str:
        """Returns when the server's process is gone, with the reason; never for one that can't be watched."""

    async def stop(self) -> None:
        """End the server, dead or alive, and what it has started. May be called at any time, and again."""


class ServerRegistry(Protocol):
    """Who must know which servers there are."""

    async def add(self, url: str) -> None:
        """A server that is ready to serve."""

    async def remove(self, url: str) -> None:
        """A server that serves no longer."""


@dataclass(kw_only=True)
class Spares:
    """How many servers of a run may be replaced, and have been."""

    limit: int
    used: int = 0

    def take(self, name: str, reason: str) -> None:
        """One more. EngineError where there are none left."""
        if self.used >= self.limit:
            raise EngineError(
                f"{name} is lost, and the run has used up its --engine-replacements {self.limit}: {reason}"
            )
        self.used += 1


@dataclass(frozen=True, kw_only=True)
class Health:
    """Every `every_s` seconds the server is asked, and has `limit_s` to answer.

    Its scheduler must answer. While the scheduler loads weights, the process that takes requests must.
    """

    every_s: float
    limit_s: float


class LostError(EngineError):
    """The server was lost before it answered."""


class RunningServer:
    """One server of an engine, from its start to its loss. `ended`: why it ended."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.location: WeightsLocation | None = None
        """The weights that it was given."""
        self.released: tuple[MemoryTag, ...] = ()
        """The memory that it has given back."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.delisted = asyncio.Event()
        """Set once the registry sends it nothing more."""


@dataclass(eq=False, kw_only=True)
class ServerLifecycle:
    """The server of one engine. One that dies, or does not answer a health check in time, is replaced.

    Once the spares are used up, whoever waits for a server gets the same EngineError.
    """

    name: str
    launcher: Launcher
    health: Health
    spares: Spares
    registry: ServerRegistry | None
    """Hears of each server before it serves and after."""
    prepare: Callable[[RunningServer], Awaitable[None]]
    """Makes a replacement ready before it serves."""

    def __post_init__(self) -> None:
        self.changes = 0
        """How often a server came to serve, or ceased to."""
        self.room = asyncio.Event()
        """Cleared while a trainer on the same devices leaves no room for another server."""
        self.room.set()
        # A count, not a flag: a load waits within its own `busy` while a replacement gets its weights in
        # another.
        self._loading = 0
        self.newest: RunningServer | None = None
        """The server that was started last. It may be lost, or not serve yet."""
        # Pending while no server serves, and a new one after each loss: whoever waits gets the next server.
        self._serving: asyncio.Future[RunningServer] = asyncio.get_running_loop().create_future()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first server, which is not replaced before it has answered."""
        await self._serve(RunningServer(await self.launcher.start()))
        self._watcher = asyncio.create_task(self._watch())

    async def watch(self) -> None:
        """Raises EngineError when the engine is lost for good; never returns."""
        assert self._watcher is not None, "watched after its start"
        await asyncio.shield(self._watcher)  # only `stop` ends it, not whoever watches

    async def stop(self) -> None:
        """End everything. May be called at any time."""
        if self._watcher is not None:
            # First, or it would replace the server that ends here.
            await end_tasks([self._watcher])
        if self.newest is not None:
            await self.newest.client.close()
        await self.launcher.stop()

    @property
    def server(self) -> RunningServer | None:
        """The server that serves, if one does."""
        serving = self._serving
        if not serving.done() or serving.exception() is not None:
            return None
        return serving.result()

    async def serving(self) -> RunningServer:
        """The server that serves; waits for one. EngineError where there will be none."""
        # Others wait for the same future.
        return await asyncio.shield(self._serving)

    async def settle(self) -> None:
        """Returns when the server has answered, or is lost and gets no more requests."""
        server = self.newest
        assert server is not None, "called after its start"
        if not server.ended.done() and (reason := await self._silence(server)) is not None:
            self._end(server, reason)
        if server.ended.done():
            await server.delisted.wait()

    async def is_lost(self, server: RunningServer, error: EngineError) -> bool:
        """Whether a request failed because its server is gone. If so, the server's time has ended."""
        if not server.ended.done() and is_fault(error):  # the health check tells whether it is gone
            reason = await self._fault(server)
            if reason is not None:
                self._end(server, reason)
        return server.ended.done()

    def loss(self, server: RunningServer) -> LostError:
        """The error of requests to a server whose time has ended."""
        return LostError(f"{self.name} was lost: {server.ended.result()}")

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within, the scheduler may be unable to answer a health check (see `_silence`)."""
        self._loading += 1
        try:
            yield
        finally:
            self._loading -= 1

    def _end(self, server: RunningServer, reason: str) -> None:
        """Mark the server as lost; whoever asks now waits for the next. The first reason counts."""
        if not server.ended.done():
            server.ended.set_result(reason)
            # A server that is lost before it served leaves the future as it is: others wait for that one
            # already.
            if self.server is not None:
                self._serving = asyncio.get_running_loop().create_future()

    async def _fault(self, server: RunningServer) -> str | None:
        """What is wrong with the server's scheduler, if anything."""
        return await _complaint(server.client.ping(timeout_s=self.health.limit_s))

    async def _silence(self, server: RunningServer) -> str | None:
        """Like `_fault`. While the scheduler loads weights it can't answer, so the process is asked."""
        fault = None if self._loading else await self._fault(server)
        if self._loading:  # from the start, or since it was asked
            fault = await _complaint(server.client.reach(timeout_s=self.health.limit_s))
        return fault

    async def _watch(self) -> None:
        """Replace servers as they end, until one cannot be."""
        try:
            while True:
                assert self.newest is not None, "watched after its start"
                await self._replace(await self._end_of(self.newest))
        except RunError as error:
            self._serving.set_exception(error)
            self._serving.exception()  # seen: nobody may be waiting
            raise

    async def _end_of(self, server: RunningServer) -> str:
        """Waits for the end of the server's time; the reason."""
        signs = [asyncio.ensure_future(self.launcher.died()), asyncio.ensure_future(self._unhealthy(server))]
        try:
            await asyncio.wait({*signs, server.ended}, return_when=asyncio.FIRST_COMPLETED)
            # Whoever noticed it first, the end of the log says most.
            await asyncio.wait(signs[:1], timeout=REASON_S)
            reason = next((sign.result() for sign in signs if sign.done()), None)
            self._end(server, reason or server.ended.result())
            return reason or server.ended.result()
        finally:
            await end_tasks(signs)

    async def _unhealthy(self, server: RunningServer) -> str:
        """Returns when a health check fails."""
        while True:
            await asyncio.sleep(self.health.every_s)
            if (reason := await self._silence(server)) is not None:
                return reason

    async def _replace(self, reason: str) -> None:
        """A new server, with the weights of the run."""
        while True:
            assert self.newest is not None, "replaced after its start"
            # First of all, or a router would go on sending requests there.
            await self._delist(self.newest)
            self.spares.take(self.name, reason)
            used, limit = self.spares.used, self.spares.limit
            _log.warning("%s is replaced (%d of %d): %s", self.name, used, limit, reason)
            await self.newest.client.close()
            await self.launcher.stop()
            await self.room.wait()  # a trainer on the same devices leaves none while it works
            try:
                server = self.newest = RunningServer(await self.launcher.start())
                await self._prepare(server)
                await self._serve(server)
            except OutdatedError as error:
                raise EngineError(f"{self.name} cannot be replaced: {error} It was lost: {reason}") from error
            except RunError as error:
                reason = str(error)
                continue
            return

    async def _prepare(self, server: RunningServer) -> None:
        """Have a server prepared that does not serve yet. LostError if the server is lost first."""
        # `_watch` watches only servers that serve: if this one dies before, nobody else would say so.
        end = asyncio.create_task(self._end_of(server))
        try:
            await self.prepare(server)
        finally:
            await end_tasks([end])

    async def _delist(self, server: RunningServer) -> None:
        """Make sure that nothing more is sent to the server."""
        if server.delisted.is_set():
            return
        try:
            if self.registry is not None:
                await self.registry.remove(server.client.url)
        finally:
            # Also where the registry fails, or `settle` would wait for ever.
            self.changes += 1
            server.delisted.set()

    async def _serve(self, server: RunningServer) -> None:
        if self.registry is not None:
            await self.registry.add(server.client.url)
        if server.ended.done():  # while the registry answered
            raise self.loss(server)
        self.newest = server
        self.changes += 1
        self._serving.set_result(server)


async def _complaint(request: Awaitable[None]) -> str | None:
    """Why `request`, sent to a server, failed; None if it did not."""
    try:
        await request
    except EngineError as error:
        return str(error)
    return None
