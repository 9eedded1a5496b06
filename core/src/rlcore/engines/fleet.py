"""`Fleet`: all engines of a run. If a server is lost, another one answers its requests."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rlcore.api.generation import Completion, Request
from rlcore.engines.client import EngineClient
from rlcore.engines.lifecycle import LostError, RunningServer
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_machine.tasks import first

T = TypeVar("T")


@dataclass(kw_only=True)
class Joint:
    """Requests that one server is to begin together. `awaited`: those that have not come yet."""

    engine: SupervisedEngine
    server: RunningServer
    awaited: int


class Fleet:
    """Engines that stand in for one another; they are started and stopped by their owner.

    A request goes to its own engine while that serves, otherwise to the next one that does. Where none does,
    it waits. If its server is lost before it has answered, another one is asked. The answer then holds other
    log-probs in the last bits: it was computed in another batch.
    """

    def __init__(self, engines: Sequence[SupervisedEngine]) -> None:
        self._engines = tuple(engines)
        self._joint: dict[tuple[int, str], Joint] = {}
        self._has_sessions: bool | None = None

    @property
    def clients(self) -> "list[FleetEngine]":
        """One for each engine, in their order."""
        return [FleetEngine(self, home, engine) for home, engine in enumerate(self._engines)]

    async def answer(self, home: int, ask: Callable[[EngineClient], Awaitable[T]]) -> T:
        """The result of `ask` with a server, preferably that of engine `home`."""
        while True:
            engine, server = await self._serving(home)
            with contextlib.suppress(LostError):
                return await engine.requests.once(server, ask(server.client))

    async def generate(self, home: int, request: Request) -> list[Completion]:
        """The completions of a server, preferably that of engine `home`."""
        engine, server, session = await self._placed(home, request)
        request = replace(request, session=session)
        with contextlib.suppress(LostError):
            return await engine.requests.once(server, server.client.generate(request))
        # The other requests of its session have been answered, or are asked again just like this one.
        request = replace(request, session=None)
        return await self.answer(home, lambda client: client.generate(request))

    async def _placed(
        self, home: int, request: Request
    ) -> tuple[SupervisedEngine, RunningServer, str | None]:
        """The server of a request, and what its session "NAME/N" is called there.

        All N go to one server. Where it is lost before all have come, the rest go alone.
        """
        engine, server = await self._serving(home)
        if request.session is None or not await self._takes_sessions():
            return engine, server, None
        name, _, size = request.session.rpartition("/")
        # The first request of a session chooses the server, for the others may find another one serving.
        new = Joint(engine=engine, server=server, awaited=int(size))
        joint = self._joint.setdefault((home, request.session), new)
        joint.awaited -= 1
        if not joint.awaited:
            del self._joint[home, request.session]
        if joint.server.ended.done():
            return engine, server, None
        # several homes may share a server, which must not take their sessions for one
        return joint.engine, joint.server, f"{name}.{home}/{size}"

    async def _takes_sessions(self) -> bool:
        """Whether the servers begin requests together. Asked once, for they are all alike."""
        if self._has_sessions is None:
            can = await self._engines[0].requests.with_client(lambda client: client.capabilities())
            self._has_sessions = can.sessions
        return self._has_sessions

    async def _serving(self, home: int) -> tuple[SupervisedEngine, RunningServer]:
        """The first engine from `home` on that serves, and its server."""
        while True:
            for engine in self._engines[home:] + self._engines[:home]:
                if engine.lifecycle.server is not None:
                    return engine, engine.lifecycle.server
            await first(engine.lifecycle.serving() for engine in self._engines)


class FleetEngine:
    """One engine of a run, as generators ask it (`rlcore.GenerationClient`)."""

    def __init__(self, fleet: Fleet, home: int, engine: SupervisedEngine) -> None:
        self._fleet = fleet
        self._home = home
        self._engine = engine

    async def generate(self, request: Request) -> list[Completion]:
        """The completions of whichever server is alive."""
        return await self._fleet.generate(self._home, request)

    async def abort(self) -> None:
        """End every request in progress at this engine, also those that it answers for another one."""
        await self._engine.requests.abort()

    async def weight_version(self) -> int:
        """The version of the weights of its own engine."""
        return await self._engine.requests.weight_version()
