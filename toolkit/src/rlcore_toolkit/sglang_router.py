"""sglang-router in front of an engine's servers, for those that speak SGLang's protocol."""

import asyncio
import importlib.util
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcore import EngineError, Http, MissingEngineError, Request
from rlcore_machine import LOOPBACK, ServerProcess, free_port
from rlcore_toolkit import sglang_router_launch as launch

START_LIMIT_S = 60.0
REQUEST_LIMIT_S = 30.0
ROUTING_HEADER = "X-SMG-Routing-Key"
"""The header by which sglang-router keeps requests together under `consistent_hashing`."""
POLL_S = 0.1


class SglangRouter:
    """The process, and the list of its workers (`rlcore.Router`)."""

    def __init__(self, policy: str, *, token: str | None, log_path: Path, divided: bool = False) -> None:
        """`policy`: one of sglang-router's; `token`: its own and the workers'.

        `divided`: some workers compute prompts, and others go on from there.
        """
        self._token = token
        try:
            port, metrics_port = str(free_port()), str(free_port())
        except OSError as error:
            raise EngineError(str(error)) from error
        self.url = f"http://{LOOPBACK}:{port}"
        # `-P`: the folder of the program is not on its path, where our modules could hide those of others.
        command = (sys.executable, "-P", launch.__file__, LOOPBACK, port, metrics_port, policy)
        self._process = ServerProcess(
            [*command, *([launch.DIVIDED] if divided else [])],
            name="router",
            log_path=log_path,
            env={launch.TOKEN_VARIABLE: token or ""},
            error=EngineError,
        )
        self._http = Http(self.url, token)

    @staticmethod
    def check() -> None:
        """Raises `MissingEngineError` where sglang-router is not installed beside rlcore."""
        if importlib.util.find_spec("sglang_router") is None:
            raise MissingEngineError("--router needs sglang-router beside rlcore: pip install sglang-router.")

    @staticmethod
    def headers(request: Request) -> Mapping[str, str]:
        """The group of the request, so that `consistent_hashing` sends all of the group to one worker."""
        return {ROUTING_HEADER: request.rid.partition(".")[0]}

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
