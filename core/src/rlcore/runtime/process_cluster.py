"""A cluster that is this machine alone: each actor is a process, forked from one that has the imports."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from rlcore.api.errors import ConfigError
from rlcore.fork_server import Forked, ForkServer
from rlcore.network import LOOPBACK
from rlcore.runtime import actor_process
from rlcore.runtime.actor_process import Link, Pickled, listening
from rlcore.runtime.cluster import Bundle, Thread, watch_processes
from rlcore.runtime.reaper import Reaper

NO_RAY = "none"
"""The address of this machine without Ray."""
_END_SECONDS = 5.0
"""Seconds that a process may take to end after its connection has ended."""


class ProcessActor:
    """An `Actor`. In another process it is an address to call."""

    def __init__(self, address: str, key: str, process: Forked | None = None) -> None:
        self._address, self._key, self._process = address, key, process
        self._link = Link(address, key, self._why)

    @classmethod
    def start(
        cls, server: ForkServer, of: type, arguments: Sequence[Any], devices: Sequence[str]
    ) -> ProcessActor:
        """An object of `of` in a new process, which sees the GPUs `devices`."""
        env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {})}
        key = secrets.token_hex(32)
        listener, address = listening()
        with listener:
            target = f"{actor_process.__name__}:{actor_process.main.__name__}"
            process = server.fork(target, [of.__name__, key], [listener.fileno()], env=env)
            actor = cls(address, key, process)
        actor._link.construct(of, arguments)
        return actor

    def call(self, method: str, *arguments: Any, thread: Thread | None = None) -> Awaitable[Any]:
        """As `Actor.call`."""
        return asyncio.wrap_future(self._link.call(method, arguments, thread))

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """As `Actor.ask`."""
        return self._link.call(method, arguments).result(limit_s)

    def kill(self) -> None:
        """As `Actor.kill`."""
        assert self._process is not None, "only who started it ends it"
        self._process.kill()

    def __reduce__(self) -> tuple[type[ProcessActor], tuple[str, str]]:
        return ProcessActor, (self._address, self._key)

    def _why(self) -> str:
        if self._process is None:
            return "its process has ended."
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "its process has left."
        if code < 0:
            return f"{signal.Signals(-code).name} ended its process."
        return f"its process ended with exit code {code}."


@dataclass(frozen=True)
class ProcessCluster:
    """This machine as a `Cluster`."""

    server: ForkServer
    gpus: int
    reaper: Reaper
    address: str = NO_RAY
    here: str = LOOPBACK

    async def watch(self, limit_s: float) -> None:
        """As `Cluster.watch`."""
        await watch_processes({"The fork server": self.server.pid}, limit_s)

    def place(self, bundles: Sequence[Bundle], what: str) -> list[list[str]]:
        """See `Cluster.place`. Returns the GPUs of each bundle; ignores what else uses this machine."""
        need = sum(int(bundle.get("GPU", 0)) for bundle in bundles)
        if need > self.gpus:
            raise ConfigError(
                f"{what} need {need} GPUs, and this machine has {self.gpus}: lower --ranks or --engines, or "
                "give a cluster with --ray-address."
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = iter(visible.split(",") if visible else map(str, range(self.gpus)))
        return [[next(devices) for _ in range(int(bundle.get("GPU", 0)))] for bundle in bundles]

    def hosts(self, group: list[list[str]]) -> list[str]:
        """As `Cluster.hosts`."""
        return [LOOPBACK] * len(group)

    def devices(self, group: list[list[str]]) -> list[tuple[str, ...]]:
        """As `Cluster.devices`."""
        return [tuple(bundle) for bundle in group]

    def actor(
        self, cls: type, *arguments: Any, gpus: float, bundle: tuple[list[list[str]], int]
    ) -> ProcessActor:
        """See `Cluster.actor`. It sees all GPUs of its bundle, unless `gpus` is 0."""
        group, index = bundle
        return ProcessActor.start(self.server, cls, arguments, group[index] if gpus else ())

    def put(self, value: Any) -> Pickled:
        """As `Cluster.put`."""
        return Pickled(value)
