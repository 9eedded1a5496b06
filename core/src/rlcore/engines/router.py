"""A router in front of the engines: one URL to generate at, whichever of them answers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion, Request
from rlcore.engines.client import EngineClient
from rlcore.engines.client_http import is_fault
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_machine.tasks import first, together


class Router(Protocol):
    """What an engine has for `--router POLICY`: a server that divides requests among the engine's servers.

    It divides and nothing else: health checks, retries and replacements are rlcore's. Control calls never go
    through it.
    """

    url: str
    """Where it answers. Known before it starts."""

    def __init__(self, policy: str, *, token: str | None, log_path: Path, divided: bool = False) -> None:
        """`policy`: one of `EngineConfig.routers`; `token`: its own and the servers'.

        `divided`: some servers compute prompts, and others go on from there (`Engine.router_role`).
        """

    @staticmethod
    def check() -> None:
        """Called before any process starts: `MissingEngineError` where it is not installed."""

    async def start(self) -> None:
        """Start it, without servers."""

    async def watch(self) -> None:
        """Raises `EngineError` with the end of its log when it ends; never returns."""

    async def stop(self) -> None:
        """End it. May be called again."""

    @staticmethod
    def headers(request: Request) -> Mapping[str, str]:
        """The headers that the router needs with a request, such as a key that keeps a group together.

        The `rid` of each request of a group begins with "GROUP.".
        """

    async def add(self, url: str, role: Mapping[str, Any] | None = None) -> None:
        """Send requests to the server at `url` from now on. `role`: of `Engine.router_role`."""

    async def remove(self, url: str) -> None:
        """Send nothing more to the server at `url`."""


@dataclass(frozen=True)
class Listing:
    """The router's list for one engine's servers (`rlcore.engines.lifecycle.ServerRegistry`)."""

    router: Router
    role: Mapping[str, Any]

    async def add(self, url: str) -> None:
        """Put the server at `url` on the router's list, in its role."""
        await self.router.add(url, self.role)

    async def remove(self, url: str) -> None:
        """Take the server at `url` off the router's list."""
        await self.router.remove(url)


@dataclass(eq=False)
class RoutedEngine:
    """A client of a run (`rlcore.GenerationClient`) whose requests any of the engines may answer.

    If an engine is lost, the router fails its requests. They are sent again as soon as the router knows that
    the engine is gone. A router has no sessions.
    """

    engine: SupervisedEngine
    """Whose requests `abort` ends."""
    engines: Sequence[SupervisedEngine]
    client: EngineClient
    """The client that asks the router, with the router's headers."""

    async def generate(self, request: Request) -> list[Completion]:
        """Like `EngineClient.generate`, but no batches: a router takes none, so each sample is a request."""
        request = replace(request, session=None)
        if request.n > 1 and not (await self.client.capabilities()).seeds_siblings:
            alone = [
                replace(request, n=1, seed=request.seed + i, rid=f"{request.rid}+{i}")
                for i in range(request.n)
            ]
            return [completion for (completion,) in await together(map(self._answer, alone))]
        return await self._answer(request)

    async def _answer(self, request: Request) -> list[Completion]:
        while True:
            changes = [engine.lifecycle.changes for engine in self.engines]
            try:
                return await self.client.generate(request)
            except EngineError as error:
                if not is_fault(error):
                    raise
                # The router does not say which engine failed: each must answer, or be off the router's list.
                await asyncio.gather(*(engine.lifecycle.settle() for engine in self.engines))
                # No server came or went meanwhile, so the fault is the request's and would come again.
                if changes == [engine.lifecycle.changes for engine in self.engines]:
                    raise
                await first(engine.lifecycle.serving() for engine in self.engines)

    async def weight_version(self) -> int:
        """The version of its own engine."""
        return await self.engine.requests.weight_version()

    async def abort(self) -> None:
        """Ends every request of its own engine."""
        await self.engine.requests.abort()
