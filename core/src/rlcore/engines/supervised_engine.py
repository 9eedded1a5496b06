"""`SupervisedEngine`: the weights and the memory of one engine, whichever server stands in for it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import get_args

from rlcore.engines.client import EngineClient, MemoryTag
from rlcore.engines.failover import FailoverClient
from rlcore.engines.lifecycle import (
    Health,
    Launcher,
    LostError,
    RunningServer,
    ServerLifecycle,
    ServerRegistry,
    Spares,
)
from rlcore.engines.publish import Publisher
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import OutdatedError


class SupervisedEngine:
    """One engine of a run. It loads weights as an `EngineClient` does, also if the server dies meanwhile.

    A replacement gets the newest weights before it serves. `lifecycle` starts, watches and replaces the
    server, and `requests` sends requests to it.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        publisher: Publisher | None,
        *,
        health: Health,
        spares: Spares,
        registry: ServerRegistry | None = None,
        lags: bool = False,
    ) -> None:
        """`publisher`: None if the server keeps the weights of its start; then nothing is loaded.

        `lags`: the engine keeps its weights while the trainer goes on. A replacement may find these weights
        gone, which is an EngineError.
        """
        self.lifecycle = ServerLifecycle(
            name=name,
            launcher=launcher,
            health=health,
            spares=spares,
            registry=registry,
            prepare=self._bring_newest,
        )
        self.requests = FailoverClient(self.lifecycle)
        self._publisher = publisher
        self._lags = lags
        self._shares = False
        """Whether a trainer is on its devices."""
        self._location: WeightsLocation | None = None
        self._newer = asyncio.Event()

    async def drain(self) -> None:
        """Returns when the server, which gets no more requests, has nothing left to do.

        Call it before `release`. Like that, it does nothing if the server can't give its memory back.
        """
        await self.requests.repeated(self._drain)

    async def release(self, *tags: MemoryTag) -> None:
        """The idle server gives the memory of `tags` back, or all of it.

        `load` takes the memory of the weights again, `resume` the rest. A server that is lost meanwhile is
        replaced once `resume` makes room. Does nothing if the server can't give its memory back.
        """
        await self.requests.repeated(lambda server: self._release(server, tags or get_args(MemoryTag)))
        # Not before the answer: a server that is lost meanwhile is replaced, and its replacement needs room
        # to start.
        self._shares = True
        self.lifecycle.room.clear()

    async def resume(self) -> None:
        """The server has all of its memory again; returns when one serves."""
        # First: a server that was lost meanwhile is replaced only now, and the next line waits for it.
        self.lifecycle.room.set()
        await self.requests.repeated(lambda server: self._resume(server, *get_args(MemoryTag)))

    async def load(self, location: WeightsLocation, *, keep_cache: bool = False) -> None:
        """Like `Publisher.load`. From now on a replacement of the server begins with `location`.

        If the server is lost and there is no room for another one before `resume`, this returns at once.
        """
        self._location = location
        self._newer.set()  # a replacement whose older weights the trainer no longer has goes on with these
        with self.lifecycle.busy():
            if await self._load_with_others(location, keep_cache):
                return
            # Streamed pieces have gone on without the lost server, so `_load_alone` opens another stream.
            while self.lifecycle.room.is_set():
                server = await self.lifecycle.serving()
                with contextlib.suppress(LostError):
                    await self.requests.once(server, self._load_alone(server, location, keep_cache))
                    return

    async def _load_with_others(self, location: WeightsLocation, keep_cache: bool) -> bool:
        """Whether the present server has taken up `location`, at the same time as the others."""
        # Taken before anything can fail, for the other engines wait until each share has asked or left.
        share = location.stream.share() if location.stream is not None else None
        mine = replace(location, pieces=share.pieces()) if share is not None else location
        try:
            if (server := self.lifecycle.server) is not None:
                with contextlib.suppress(LostError):
                    await self.requests.once(server, self._give(server, mine, keep_cache))
                    return True
        finally:
            if share is not None:
                share.close()
        return False

    async def _load_alone(self, server: RunningServer, location: WeightsLocation, keep_cache: bool) -> None:
        if location.stream is None:
            await self._give(server, location, keep_cache)
            return
        assert self._publisher is not None, "weights are given to who takes them"
        ranks = sorted(set(self._publisher.sources))
        async with contextlib.aclosing(location.stream.alone(ranks)) as pieces:
            await self._give(server, replace(location, pieces=pieces), keep_cache)

    async def check(self, ask: Callable[[EngineClient], Awaitable[None]]) -> None:
        """Like `FailoverClient.with_client`, but does nothing where `load` would return at once."""
        with self.lifecycle.busy():
            # While a trainer has the memory, no replacement could start: nothing is asked then.
            while self.lifecycle.server is not None or self.lifecycle.room.is_set():
                server = await self.lifecycle.serving()
                with contextlib.suppress(LostError):
                    await self.requests.once(server, ask(server.client))
                    return

    @staticmethod
    async def _drain(server: RunningServer) -> None:
        if not server.released and (await server.client.capabilities()).memory:
            await server.client.flush_cache()

    @staticmethod
    async def _release(server: RunningServer, tags: tuple[MemoryTag, ...]) -> None:
        occupied = tuple(tag for tag in tags if tag not in server.released)
        if occupied and (await server.client.capabilities()).memory:
            await server.client.release_memory(*occupied)
            server.released += occupied

    @staticmethod
    async def _resume(server: RunningServer, *tags: MemoryTag) -> None:
        if missing := [tag for tag in tags if tag in server.released]:
            await server.client.resume_memory(*missing)
            server.released = tuple(tag for tag in server.released if tag not in missing)

    async def _give(self, server: RunningServer, location: WeightsLocation, keep_cache: bool) -> None:
        """Load the weights. Keys and values get their memory later: the trainer still holds much."""
        await self._resume(server, "weights")
        assert self._publisher is not None, "weights are given to who takes them"
        if server.location != location:  # a replacement may have begun with it
            # Only where it is so: a publisher for engines that keep their memory needs no `is_idle`.
            idle = {"is_idle": True} if "kv_cache" in server.released else {}
            await self._publisher.load(server.client, location, keep_cache=keep_cache, **idle)
            server.location = location

    async def _bring_newest(self, server: RunningServer) -> None:
        """The weights of the run, unless they are those of the server's start.

        The trainer may be at the next version already: then they come with its publication.
        """
        while (location := self._location) is not None:
            # Before the weights are brought: newer ones that are published meanwhile must not go unnoticed.
            self._newer.clear()
            try:
                with self.lifecycle.busy():
                    await self.requests.once(server, self._begin_with(server, location))
                return
            except OutdatedError:
                if self._lags:
                    raise
                await self._newer.wait()

    async def _begin_with(self, server: RunningServer, location: WeightsLocation) -> None:
        """A trainer on the same devices needs room for its weights while it hands them over."""
        if self._shares and location.stream is not None:
            await self._release(server, ("kv_cache", "cuda_graph"))
        await self._load_alone(server, location, False)
        await self._resume(server, "kv_cache", "cuda_graph")
