"""`Cluster`: where the processes of a run are, and `Actor`: one of them, whose methods can be called."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import psutil

from rlcore.api.errors import WorkerError

if TYPE_CHECKING:
    from rlcore.runtime.reaper import Reaper

THREADS = {"watch": 1, "write": 1, "take": 1, "stop": 1, "broadcast": 4}
"""An actor's threads, beside that of its other calls. A broadcast may wait for an engine that hangs."""

Thread = Literal["watch", "write", "take", "stop", "broadcast"]
Bundle = Mapping[str, float]
"""How much `CPU` and `GPU` to reserve together on one host."""

BEAT_SECONDS = 2.0
"""Seconds between two signs of life of a watched process."""
_TICK_SECONDS = 0.5

T = TypeVar("T")


class CallFailed(Exception):  # noqa: N818 - says what became of a call, as `within` tells it
    """A call to an actor got no answer. The text continues a sentence that begins with the actor's name."""


class Actor(Protocol):
    """A process with an object in it. May be an argument of a call to another actor."""

    def call(self, method: str, *arguments: Any, thread: Thread | None = None) -> Awaitable[Any]:
        """The answer of a method. Calls of one `thread` are answered in order.

        Raises the method's own error where that is rlcore's; else `CallFailed`.
        """
        ...

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Like `call`, for code in another actor that is not asynchronous."""
        ...

    def kill(self) -> None:
        """End the process at once; it may have ended already."""
        ...


class Cluster(Protocol):
    """Hosts that processes can be placed on."""

    @property
    def address(self) -> str | None:
        """The address that the user gave; None: the run's own cluster, on this machine."""
        ...

    @property
    def gpus(self) -> int:
        """GPUs in the whole cluster."""
        ...

    @property
    def here(self) -> str:
        """The address of this process's host."""
        ...

    @property
    def reaper(self) -> Reaper:
        """The reaper, which cleans up after this process."""
        ...

    def place(self, bundles: Sequence[Bundle], what: str) -> Any:
        """Reserve `bundles`; `ConfigError` at once where the cluster is too small for `what` they are for."""
        ...

    def hosts(self, group: Any) -> list[str]:
        """The address of the host of each bundle that `place` reserved."""
        ...

    def devices(self, group: Any) -> list[tuple[str, ...]]:
        """The GPUs of each bundle, by the names that CUDA_VISIBLE_DEVICES has for them on its host."""
        ...

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Any, int]) -> Actor:
        """Start an object of `cls` in a process of its own. `bundle`: what `place` returned, and an index."""
        ...

    async def watch(self, limit_s: float) -> None:
        """Raises `WorkerError` where a process of its own on this machine ends, or is stopped for `limit_s`.

        Never returns.
        """
        ...

    def put(self, value: Any) -> Any:
        """An argument for calls to several actors, made ready once."""
        ...


async def watched(actor: Actor, limit_s: float, flag: str) -> None:
    """Raises `CallFailed` when `actor` ends, or is silent for `limit_s` (which `flag` sets); never returns.

    Its method `watch` returns after `BEAT_SECONDS`, and raises where there is something to tell.
    """
    while True:
        beat = asyncio.ensure_future(actor.call("watch", thread="watch"))
        # Ticks are counted, not seconds: this process may have been stopped itself, by Ctrl-Z for example.
        left = math.ceil((BEAT_SECONDS + limit_s) / _TICK_SECONDS)
        try:
            while not (await asyncio.wait({beat}, timeout=_TICK_SECONDS))[0]:
                left -= 1
                if left <= 0:
                    raise CallFailed(
                        f"has given no sign of life for {limit_s:g} s ({flag}): its process is stopped, or "
                        "its host cannot be reached."
                    )
            beat.result()
        finally:
            beat.cancel()


async def watch_processes(processes: Mapping[str, int], limit_s: float) -> None:
    """`Cluster.watch` for `processes`: name → pid."""
    watched_ones = {name: psutil.Process(pid) for name, pid in processes.items()}
    stopped = dict.fromkeys(processes, 0.0)
    while True:
        for name, process in watched_ones.items():
            try:
                status = process.status()
            except psutil.NoSuchProcess:
                status = psutil.STATUS_DEAD
            if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                raise WorkerError(f"{name} has ended: its processes cannot go on.")
            stopped[name] = stopped[name] + _TICK_SECONDS if status == psutil.STATUS_STOPPED else 0.0
            if stopped[name] >= limit_s:
                process.resume()  # who waits for it could not be ended
                raise WorkerError(f"{name} has been stopped for {limit_s:g} s (--worker-health-limit).")
        await asyncio.sleep(_TICK_SECONDS)


async def within(
    seconds: float | None, what: str, awaitable: Awaitable[T], late: str = "did not answer", flag: str = ""
) -> T:
    """The call's result; `WorkerError` where it fails or takes over `seconds` (None: no limit).

    `late`: what the sentence says that `what` did then. `flag`: the flag that sets the limit.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except CallFailed as error:
        raise WorkerError(f"{what} {error}") from error
    except TimeoutError:
        assert seconds is not None, "without a limit nothing takes too long"
        raise WorkerError(f"{what} {late} within {seconds:g} s{f' ({flag})' if flag else ''}.") from None
