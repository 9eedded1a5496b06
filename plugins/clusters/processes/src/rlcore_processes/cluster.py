"""A cluster that is this machine alone: each actor is a process, forked from one that has the imports."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from rlcore import ActorThread, Bundle, CallFailed, ConfigError
from rlcore_machine import LOOPBACK, Forked, ForkServer
from rlcore_processes import actor_process
from rlcore_processes.actor_process import Link, Pickled, open_listener
from rlcore_processes.config import ProcessesConfig
from rlcore_toolkit import watch_processes

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
        listener, address = open_listener()
        with listener:
            target = f"{actor_process.__name__}:{actor_process.main.__name__}"
            process = server.fork(
                target, [of.__name__, key], [listener.fileno()], env=env, outlives_signals=True
            )
            actor = cls(address, key, process)
        actor._link.construct(of, arguments)
        return actor

    def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
        return asyncio.wrap_future(self._link.call(method, arguments, thread))

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        answer = self._link.call(method, arguments)
        wait([answer], limit_s)
        if not answer.done():
            raise CallFailed(f"did not answer within {limit_s:g} s.")
        return answer.result()

    def kill(self) -> None:
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


class ProcessCluster:
    """A `rlcore.Cluster`. A group of bundles is the list of the GPUs of each bundle."""

    here = LOOPBACK

    def __init__(self, config: ProcessesConfig) -> None:
        self.gpus = 0
        self._server: ForkServer | None = None

    def prepare(self, modules: Sequence[str]) -> None:
        """Start the fork server, which imports `modules`."""
        self._server = ForkServer(modules)

    def connect(self, *, cpus: int, gpus: int, remove: Callable[[Path], None]) -> None:
        """CPUs are not counted: the processes share them."""
        self.gpus = gpus

    def close(self) -> None:
        """End the fork server, and with it every actor."""
        if self._server is not None:
            self._server.close()

    async def watch(self, limit_s: float) -> None:
        await watch_processes({"The fork server": self._forks.pid}, limit_s)

    def place(self, bundles: Sequence[Bundle], what: str) -> list[list[str]]:
        """Places bundles without regard to what else uses this machine."""
        need = sum(int(bundle.get("GPU", 0)) for bundle in bundles)
        if need > self.gpus:
            raise ConfigError(
                f"{what} need {need} GPUs, and this machine has {self.gpus}: lower --ranks or --engines, or "
                "choose another --cluster."
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = iter(visible.split(",") if visible else map(str, range(self.gpus)))
        return [[next(devices) for _ in range(int(bundle.get("GPU", 0)))] for bundle in bundles]

    def hosts(self, group: list[list[str]]) -> list[str]:
        return [LOOPBACK] * len(group)

    def devices(self, group: list[list[str]]) -> list[tuple[str, ...]]:
        return [tuple(bundle) for bundle in group]

    def actor(
        self, cls: type, *arguments: Any, gpus: float, bundle: tuple[list[list[str]], int]
    ) -> ProcessActor:
        """An actor that sees all GPUs of its bundle, unless `gpus` is 0."""
        group, index = bundle
        return ProcessActor.start(self._forks, cls, arguments, group[index] if gpus else ())

    def put(self, value: Any) -> Pickled:
        return Pickled(value)

    @property
    def _forks(self) -> ForkServer:
        assert self._server is not None, "it has been prepared"
        return self._server
