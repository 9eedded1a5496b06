"""sglang-router in front of the engines: one URL to generate at. Launched, watched and stopped by rlcore."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.api.errors import EngineError, MissingEngineError
from rlcore.api.generation import Completion
from rlcore.api.types import Sampling
from rlcore.engines import router_launch
from rlcore.engines.client import EngineClient
from rlcore.engines.client_http import Http, is_fault
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore.network import LOOPBACK, free_port
from rlcore.tasks import first, together
from rlcore_machine.server_process import ServerProcess

START_LIMIT_S = 60.0
REQUEST_LIMIT_S = 30.0
POLL_S = 0.1


def require_router() -> None:
    """Raises `MissingEngineError` where sglang-router is not installed beside rlcore."""
    if importlib.util.find_spec("sglang_router") is None:
        raise MissingEngineError("--router needs sglang-router beside rlcore: pip install sglang-router.")


class Router:
    """The process, and the list of its workers (`rlcore.engines.supervised_engine.ServerRegistry`).

    It distributes and nothing else: health checks, retries and replacements are the engines'. Control calls
    never go through it, since it knows none of them.
    """

    def __init__(self, policy: str, *, token: str | None, log_path: Path, divided: bool = False) -> None:
        """`policy`: one of sglang-router's; `token`: its own and the workers'.

        `divided`: some workers compute prompts, and others go on from there.
        """
        self._token = token
        port, metrics_port = str(free_port()), str(free_port())
        self.url = f"http://{LOOPBACK}:{port}"
        # `-P`: the folder of the program is not on its path, where our modules could hide those of others.
        command = (sys.executable, "-P", router_launch.__file__, LOOPBACK, port, metrics_port, policy)
        self._process = ServerProcess(
            [*command, *([router_launch.DIVIDED] if divided else [])],
            name="router",
            log_path=log_path,
            env={router_launch.TOKEN_VARIABLE: token or ""},
            error=EngineError,
        )
        self._http = Http(self.url, token)

    async def start(self) -> None:
        """Start it, without workers."""
        self._process.start()
        await asyncio.to_thread(self._process.wait_ready, f"{self.url}/health", limit_s=START_LIMIT_S)

    async def watch(self) -> None:
        """Raises EngineError with the end of its log when it ends; never returns."""
        while True:
            self._process.check()
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End it. May be called again."""
        await self._http.close()
        await asyncio.to_thread(self._process.stop)

    async def add(self, url: str, role: Mapping[str, Any] | None = None) -> None:
        """Send requests to the engine at `url` from now on; those of its `role`, where work is divided."""
        body = {"url": url, "api_key": self._token, **(role or {})}
        await self._http.post("/workers", body, timeout_s=REQUEST_LIMIT_S)
        # The router answers at once, and asks the server before it lists it.
        await self._until(url, listed=True)

    async def remove(self, url: str) -> None:
        """Send nothing more to the engine at `url`."""
        for worker in await self._workers():
            if worker["url"] == url:
                await self._http.delete(f"/workers/{worker['id']}", timeout_s=REQUEST_LIMIT_S)
        await self._until(url, listed=False)

    async def _workers(self) -> list[dict[str, Any]]:
        answer = await self._http.get("/workers", timeout_s=REQUEST_LIMIT_S)
        workers: list[dict[str, Any]] = answer["workers"]
        return workers

    async def _until(self, url: str, *, listed: bool) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while any(worker["url"] == url for worker in await self._workers()) != listed:
            if time.monotonic() > deadline:
                change = "take up" if listed else "let go of"
                raise EngineError(f"The router did not {change} {url} within {START_LIMIT_S:g} s.")
            await asyncio.sleep(POLL_S)


@dataclass(frozen=True)
class Listing:
    """The router's list for one engine's servers (`rlcore.engines.supervised_engine.ServerRegistry`)."""

    router: Router
    role: Mapping[str, Any]

    async def add(self, url: str) -> None:
        """As `Router.add`."""
        await self.router.add(url, self.role)

    async def remove(self, url: str) -> None:
        """As `Router.remove`."""
        await self.router.remove(url)


class RoutedEngine:
    """A client of a run (`rlcore.GenerationClient`) whose requests any of the engines may answer.

    All requests of a group, whose `rid` begins with "GROUP.", have its name as the routing key, so that
    `consistent_hashing` sends them to one engine. If an engine is lost, the router fails its requests. They
    are sent again as soon as the router knows that the engine is gone. A router has no sessions.
    """

    def __init__(
        self, engine: SupervisedEngine, engines: Sequence[SupervisedEngine], client: EngineClient
    ) -> None:
        """`engine`: whose requests `abort` ends; `client`: of the router."""
        self._engine = engine
        self._engines = engines
        self._client = client

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> list[Completion]:
        """Like `EngineClient.generate`, but no batches: a router takes none, so each sample is a request."""
        if n > 1 and not (await self._client.capabilities()).seeds_siblings:
            alone = [self._one(input_ids, sampling, 1, seed + i, f"{rid}+{i}") for i in range(n)]
            return [completion for (completion,) in await together(alone)]
        return await self._one(input_ids, sampling, n, seed, rid)

    async def _one(
        self, input_ids: Sequence[int], sampling: Sampling, n: int, seed: int, rid: str
    ) -> list[Completion]:
        while True:
            changes = [engine.changes for engine in self._engines]
            try:
                return await self._client.generate(
                    input_ids, sampling, n=n, seed=seed, rid=rid, routing_key=rid.partition(".")[0]
                )
            except EngineError as error:
                if not is_fault(error):
                    raise
                # The router does not say which engine failed: each must answer, or be off the router's list.
                await asyncio.gather(*(engine.settle() for engine in self._engines))
                # No server came or went meanwhile, so the fault is the request's and would come again.
                if changes == [engine.changes for engine in self._engines]:
                    raise
                await first(engine.serving() for engine in self._engines)

    async def weight_version(self) -> int:
        """The version of its own engine."""
        return await self._engine.weight_version()

    async def abort(self) -> None:
        """Ends every request of its own engine."""
        await self._engine.abort()
