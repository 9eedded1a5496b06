"""`SupervisedEngine`: one engine of a run, through every server that stands in for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, TypeVar, get_args

from rlcore.api.errors import EngineError, RunError
from rlcore.engines.client import EngineClient, MemoryTag
from rlcore.engines.client_http import UnreachableError, is_fault
from rlcore.engines.publish import Publisher
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import OutdatedError
from rlcore_machine.tasks import end_tasks

T = TypeVar("T")
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


@dataclass(eq=False)
class SupervisedEngine:
    """Loads weights as an `EngineClient` does, also if the server dies meanwhile.

    A server that dies, or does not answer a health check in time, is ended and replaced. The replacement gets
    the newest weights before it serves. Once the spares are used up, every call raises the same EngineError.
    `rlcore.engines.fleet` repeats the requests of the lost server.

    `changes`: how often a server came to serve, or ceased to.
    """

    name: str
    launcher: Launcher
    publisher: Publisher | None
    """None if the server keeps the weights of its start; then nothing is loaded."""
    _: KW_ONLY
    health: Health
    spares: Spares
    registry: ServerRegistry | None = None
    """Hears of each server before it serves and after."""
    lags: bool = False
    """The engine keeps its weights while the trainer goes on. A replacement may find these weights gone,
    which is an EngineError.
    """

    def __post_init__(self) -> None:
        self._shares = False
        """Whether a trainer is on its devices."""
        self.changes = 0
        self._location: WeightsLocation | None = None
        self._newer = asyncio.Event()
        # A count, not a flag: `load` waits within its own `_busy` while a replacement gets its weights in
        # another.
        self._loading = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._server: RunningServer | None = None
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
        if self._server is not None:
            await self._server.client.close()
        await self.launcher.stop()

    # --- what callers ask ------------------------------------------------------------------------------

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

    async def once(self, server: RunningServer, asked: Awaitable[T]) -> T:
        """The result of `asked`, a request to that server. LostError if the server is lost first."""
        work = asyncio.ensure_future(asked)
        try:
            # A server that is gone may leave a connection open that never answers, so its end is awaited too.
            both: set[asyncio.Future[Any]] = {work, server.ended}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                try:
                    return work.result()
                except EngineError as error:
                    if not await self._is_lost(server, error):
                        raise
        finally:
            await end_tasks([work])
        raise self._lost(server)

    async def abort(self) -> None:
        """Like `EngineClient.abort`. Does nothing if the server is gone."""
        server = self._server
        if server is None or server.ended.done():
            return
        try:
            await server.client.abort()
        except UnreachableError as error:
            if not await self._is_lost(server, error):
                raise

    async def drain(self) -> None:
        """Returns when the server, which gets no more requests, has nothing left to do.

        Call it before `release`. Like that, it does nothing if the server can't give its memory back.
        """
        await self._asked(self._drain)

    async def release(self, *tags: MemoryTag) -> None:
        """The idle server gives the memory of `tags` back, or all of it.

        `load` takes the memory of the weights again, `resume` the rest. A server that is lost meanwhile is
        replaced once `resume` makes room. Does nothing if the server can't give its memory back.
        """
        await self._asked(lambda server: self._release(server, tags or get_args(MemoryTag)))
        # Not before the answer: a server that is lost meanwhile is replaced, and its replacement needs room
        # to start.
        self._shares = True
        self._has_room.clear()

    async def resume(self) -> None:
        """The server has all of its memory again; returns when one serves."""
        # First: a server that was lost meanwhile is replaced only now, and the next line waits for it.
        self._has_room.set()
        await self._asked(lambda server: self._resume(server, *get_args(MemoryTag)))

    async def load(self, location: WeightsLocation, *, keep_cache: bool = False) -> None:
        """Like `Publisher.load`. From now on a replacement of the server begins with `location`.

        If the server is lost and there is no room for another one before `resume`, this returns at once.
        """
        self._location = location
        self._newer.set()  # a replacement whose older weights the trainer no longer has goes on with these
        with self._busy():
            if await self._load_with_others(location, keep_cache):
                return
            # Streamed pieces have gone on without the lost server, so `_load_alone` opens another stream.
            while self._has_room.is_set():
                server = await self.serving()
                with contextlib.suppress(LostError):
                    await self.once(server, self._load_alone(server, location, keep_cache))
                    return

    async def _load_with_others(self, location: WeightsLocation, keep_cache: bool) -> bool:
        """Whether the present server has taken up `location`, at the same time as the others."""
        # Taken before anything can fail, for the other engines wait until each share has asked or left.
        share = location.stream.share() if location.stream is not None else None
        mine = replace(location, pieces=share.pieces()) if share is not None else location
        try:
            if (server := self.server) is not None:
                with contextlib.suppress(LostError):
                    await self.once(server, self._give(server, mine, keep_cache))
                    return True
        finally:
            if share is not None:
                share.close()
        return False

    async def _load_alone(self, server: RunningServer, location: WeightsLocation, keep_cache: bool) -> None:
        if location.stream is None:
            await self._give(server, location, keep_cache)
            return
        assert self.publisher is not None, "weights are given to who takes them"
        ranks = sorted(set(self.publisher.sources))
        async with contextlib.aclosing(location.stream.alone(ranks)) as pieces:
            await self._give(server, replace(location, pieces=pieces), keep_cache)

    async def check(self, ask: Callable[[EngineClient], Awaitable[None]]) -> None:
        """Like `with_client`, but does nothing where `load` would return at once."""
        with self._busy():
            # While a trainer has the memory, no replacement could start: nothing is asked then.
            while self.server is not None or self._has_room.is_set():
                server = await self.serving()
                with contextlib.suppress(LostError):
                    await self.once(server, ask(server.client))
                    return

    async def with_client(self, ask: Callable[[EngineClient], Awaitable[T]]) -> T:
        """The result of `ask` with the live server. If that dies, its replacement is asked again."""
        with self._busy():
            return await self._asked(lambda server: ask(server.client))

    async def settle(self) -> None:
        """Returns when the server has answered, or is lost and gets no more requests."""
        server = self._server
        assert server is not None, "asked after its start"
        if not server.ended.done() and (reason := await self._silence(server)) is not None:
            self._end(server, reason)
        if server.ended.done():
            await server.delisted.wait()

    async def weight_version(self) -> int:
        """As `EngineClient.weight_version`."""
        return await self.with_client(lambda client: client.weight_version())

    # --- within ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        """Within, the scheduler may be unable to answer a health check (see `_silence`)."""
        self._loading += 1
        try:
            yield
        finally:
            self._loading -= 1

    async def _asked(self, ask: Callable[[RunningServer], Awaitable[T]]) -> T:
        """The answer of the first server that lives long enough to give it."""
        while True:
            server = await self.serving()
            try:
                return await self.once(server, ask(server))
            except LostError:
                continue

    def _lost(self, server: RunningServer) -> LostError:
        return LostError(f"{self.name} was lost: {server.ended.result()}")

    async def _is_lost(self, server: RunningServer, error: EngineError) -> bool:
        """Whether a request failed because its server is gone. If so, the server's time has ended."""
        if not server.ended.done() and is_fault(error):  # the health check tells whether it is gone
            reason = await self._fault(server)
            if reason is not None:
                self._end(server, reason)
        return server.ended.done()

    def _end(self, server: RunningServer, reason: str) -> None:
        """Mark the server as lost; whoever asks now waits for the next. The first reason counts."""
        if not server.ended.done():
            server.ended.set_result(reason)
            # A server that is lost before it served leaves the future as it is: others wait for that one
            # already.
            if self.server is not None:
                self._serving = asyncio.get_running_loop().create_future()

    @staticmethod
    async def _drain(server: RunningServer) -> None:
        if not server.released and (await server.client.capabilities()).memory:
            await server.client.flush_cache()

    @staticmethod
    async def _release(server: RunningServer, tags: tuple[MemoryTag, ...]) -> None:
        wanted = tuple(tag for tag in tags if tag not in server.released)
        if wanted and (await server.client.capabilities()).memory:
            await server.client.release_memory(*wanted)
            server.released += wanted

    @staticmethod
    async def _resume(server: RunningServer, *tags: MemoryTag) -> None:
        if wanted := [tag for tag in tags if tag in server.released]:
            await server.client.resume_memory(*wanted)
            server.released = tuple(tag for tag in server.released if tag not in wanted)

    async def _give(self, server: RunningServer, location: WeightsLocation, keep_cache: bool) -> None:
        """Load the weights. Keys and values get their memory later: the trainer still holds much."""
        await self._resume(server, "weights")
        assert self.publisher is not None, "weights are given to who takes them"
        if server.location != location:  # a replacement may have begun with it
            # Only where it is so: a publisher for engines that keep their memory needs no `is_idle`.
            idle = {"is_idle": True} if "kv_cache" in server.released else {}
            await self.publisher.load(server.client, location, keep_cache=keep_cache, **idle)
            server.location = location

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
                assert self._server is not None, "watched after its start"
                await self._replace(await self._end_of(self._server))
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
            assert self._server is not None, "replaced after its start"
            # First of all, or a router would go on sending requests there.
            await self._delist(self._server)
            self.spares.take(self.name, reason)
            used, limit = self.spares.used, self.spares.limit
            _log.warning("%s is replaced (%d of %d): %s", self.name, used, limit, reason)
            await self._server.client.close()
            await self.launcher.stop()
            await self._has_room.wait()  # a trainer on the same devices leaves none while it works
            try:
                server = self._server = RunningServer(await self.launcher.start())
                await self._bring_newest(server)
                await self._serve(server)
            except OutdatedError as error:
                raise EngineError(f"{self.name} cannot be replaced: {error} It was lost: {reason}") from error
            except RunError as error:
                reason = str(error)
                continue
            return

    async def _bring_newest(self, server: RunningServer) -> None:
        """The weights of the run, unless they are those of the server's start.

        The trainer may be at the next version already: then they come with its publication.
        """
        while (location := self._location) is not None:
            # Before the weights are brought: newer ones that are published meanwhile must not go unnoticed.
            self._newer.clear()
            try:
                await self._bring(server, location)
                return
            except OutdatedError:
                if self.lags:
                    raise
                await self._newer.wait()

    async def _bring(self, server: RunningServer, location: WeightsLocation) -> None:
        """Like `_give`, for a server that does not serve yet. LostError if the server is lost first."""
        # `_watch` watches only servers that serve: if this one dies before, nobody else would say so.
        end = asyncio.create_task(self._end_of(server))
        try:
            with self._busy():
                await self.once(server, self._begin_with(server, location))
        finally:
            await end_tasks([end])

    async def _begin_with(self, server: RunningServer, location: WeightsLocation) -> None:
        """A trainer on the same devices needs room for its weights while it hands them over."""
        if self._shares and location.stream is not None:
            await self._release(server, ("kv_cache", "cuda_graph"))
        await self._load_alone(server, location, False)
        await self._resume(server, "kv_cache", "cuda_graph")

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
            raise self._lost(server)
        self._server = server
        self.changes += 1
        self._serving.set_result(server)


async def _complaint(asked: Awaitable[None]) -> str | None:
    """Why `asked`, a request to a server, failed; None if it did not."""
    try:
        await asked
    except EngineError as error:
        return str(error)
    return None
