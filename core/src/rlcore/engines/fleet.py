"""`Fleet`: all engines of a run. If a server is lost, another one answers its requests."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlcore.api.generation import Completion
from rlcore.api.types import Sampling
from rlcore.engines.client import EngineClient
from rlcore.engines.supervised_engine import LostError, RunningServer, SupervisedEngine
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
    def clients(self) -> list[FleetEngine]:
        """One for each engine, in their order."""
        return [FleetEngine(self, home, engine) for home, engine in enumerate(self._engines)]

    async def answer(
        self, home: int, session: str | None, ask: Callable[[EngineClient, str | None], Awaitable[T]]
    ) -> T:
        """Call `ask` with a server, preferably that of engine `home`, and the session's name there."""
        engine, server, name = await self._placed(home, session)
        while True:
            with contextlib.suppress(LostError):
                return await engine.once(server, ask(server.client, name))
            # The other requests of its session have been answered, or are asked again just like this one.
            engine, server = await self._serving(home)
            name = None

    async def _placed(
        self, home: int, session: str | None
    ) -> tuple[SupervisedEngine, RunningServer, str | None]:
        """The server of a request, and what the session "NAME/N" is called there.

        All N go to one server. Where it is lost before all have come, the rest go alone.
        """
        engine, server = await self._serving(home)
        if session is None:
            return engine, server, None
        if self._has_sessions is None:  # asked once: the servers are all alike
            can = await self._engines[0].with_client(lambda client: client.capabilities())
            self._has_sessions = can.sessions
        if not self._has_sessions:
            return engine, server, None
        name, _, size = session.rpartition("/")
        # The first request of a session chooses the server, for the others may find another one serving.
        new = Joint(engine=engine, server=server, awaited=int(size))
        joint = self._joint.setdefault((home, session), new)
        joint.awaited -= 1
        if not joint.awaited:
            del self._joint[home, session]
        if joint.server.ended.done():
            return engine, server, None
        # several homes may share a server, which must not take their sessions for one
        return joint.engine, joint.server, f"{name}.{home}/{size}"

    async def _serving(self, home: int) -> tuple[SupervisedEngine, RunningServer]:
        """The first engine from `home` on that serves, and its server."""
        while True:
            for engine in self._engines[home:] + self._engines[:home]:
                if engine.server is not None:
                    return engine, engine.server
            await first(engine.serving() for engine in self._engines)


class FleetEngine:
    """One engine of a run, as generators ask it (`rlcore.GenerationClient`)."""

    def __init__(self, fleet: Fleet, home: int, engine: SupervisedEngine) -> None:
        self._fleet = fleet
        self._home = home
        self._engine = engine

    async def generate(
        self, input_ids: Sequence[int], sampling: Sampling, *, session: str | None, **asked: Any
    ) -> list[Completion]:
        """Like `EngineClient.generate`, by whichever server is alive."""

        async def ask(client: EngineClient, name: str | None) -> list[Completion]:
            return await client.generate(input_ids, sampling, session=name, **asked)

        return await self._fleet.answer(self._home, session, ask)

    async def abort(self) -> None:
        """End every request in progress at this engine, also those that it answers for another one."""
        await self._engine.abort()

    async def weight_version(self) -> int:
        """As `EngineClient.weight_version`."""
        return await self._engine.weight_version()
