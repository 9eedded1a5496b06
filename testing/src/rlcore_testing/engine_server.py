"""Engine servers for a test, started and ended as the runtime does, without a cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from rlcore.api.engine import EngineLaunch
from rlcore.api.errors import EngineError
from rlcore.api.factory import load
from rlcore.api.part import Part
from rlcore.engines.client import EngineClient
from rlcore.serving.servers import EngineSupervisor

TOKEN = f"-{secrets.token_hex(8)}"  # as one in 64 of those that a run draws begins
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
REQUEST_LIMIT_S = 600.0
"""The limit of a run: far more than a test waits for anything."""


def launch_of(
    model: Path, folder: Path, *, context_length: int = 512, fields: Mapping[str, Any] = NO_FIELDS
) -> EngineLaunch:
    """A server of `model` on a free port. `folder`: where new weights lie, and the log."""
    return EngineLaunch(
        model_path=str(model),
        host="127.0.0.1",
        port=0,
        token=TOKEN,
        dtype="fp32",
        context_length=context_length,
        seed=0,
        weights_dir=str(folder),
        log_path=str(folder / "engine.log"),
        fields=fields,
    )


@contextmanager
def serving(launch: EngineLaunch, part: Part) -> Iterator[str]:
    """A server that answers, by its URL; `part`: the engine."""
    supervisor = EngineSupervisor(())
    try:
        yield supervisor.start(part, launch)
    finally:
        supervisor.stop()


class HereLauncher:
    """A slot's launcher whose supervisor is in this process.

    `part`: the engine. `url`: of its server; `starts`: how many there were. `front`: gives the URL by which
    the client of a server finds it.
    """

    def __init__(
        self,
        part: Part,
        model: Path,
        folder: Path,
        *,
        context_length: int = 512,
        port: int = 0,
        front: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        """`folder`: where new weights lie, and the log. `port`: of every server; 0: a free one for each."""
        self._part = part
        self._launch = replace(launch_of(model, folder, context_length=context_length), port=port)
        self._front = front
        self._supervisor: EngineSupervisor | None = None
        self.url = ""
        self.starts = 0

    async def start(self) -> EngineClient:
        """A new server."""
        self._supervisor = EngineSupervisor(())
        self.url = await asyncio.to_thread(self._supervisor.start, self._part, self._launch)
        self.starts += 1
        url = await self._front(self.url) if self._front else self.url
        client: EngineClient = load(self._part.build().client, self._part.name)(
            url, TOKEN, timeout_s=REQUEST_LIMIT_S, control_timeout_s=REQUEST_LIMIT_S
        )
        return client

    async def died(self) -> str:
        """Why it did."""
        watched = self._supervisor
        assert watched is not None, "watched after its start"
        try:
            while not watched._stopping.is_set():
                await asyncio.to_thread(watched.watch)
        except EngineError as error:
            return str(error)
        return "stopped"

    async def stop(self) -> None:
        """End it."""
        if self._supervisor is not None:
            await asyncio.to_thread(self._supervisor.stop)

    def processes(self) -> list[psutil.Process]:
        """The guard and the server."""
        assert self._supervisor is not None, "asked after its start"
        assert self._supervisor._server is not None, "asked after its start"
        guard = psutil.Process(self._supervisor._server.pid)
        return [guard, *guard.children()]

    def server(self) -> psutil.Process:
        """The process that serves, under its guard."""
        return self.processes()[1]
