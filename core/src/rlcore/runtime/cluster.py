"""`Cluster`: where the processes of a run are, and `Actor`: one of them, whose methods can be called."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from rlcore.api.errors import WorkerError

if TYPE_CHECKING:
    from rlcore.runtime.reaper import Reaper

LOOPBACK = "127.0.0.1"

THREADS = {"watch": 1, "write": 1, "broadcast": 4}
"""Of each actor, beside that of its other calls; one broadcast may wait for an engine that hangs."""

Thread = Literal["watch", "write", "broadcast"]
Bundle = Mapping[str, float]
"""What is reserved at once, on one host: `CPU` and `GPU`."""

T = TypeVar("T")


class CallFailed(Exception):  # noqa: N818 - says what became of a call, as `within` tells it
    """A call to an actor that has no answer; its text goes on after the actor's name."""


class Actor(Protocol):
    """A process with an object in it. May be an argument of a call to another actor."""

    def call(self, method: str, *arguments: Any, thread: Thread | None = None) -> Awaitable[Any]:
        """The answer of a method. Calls of one `thread` are answered in order.

        Raises the method's own error where that is rlcore's; else `CallFailed`.
        """
        ...

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """As `call`, from code that is not asynchronous, in another actor."""
        ...

    def kill(self) -> None:
        """End the process at once; it may have ended already."""
        ...


class Cluster(Protocol):
    """Hosts that processes can be placed on."""

    @property
    def address(self) -> str | None:
        """What the user calls it; None: it is the run's own, on this machine."""
        ...

    @property
    def gpus(self) -> int:
        """Of the whole cluster."""
        ...

    @property
    def here(self) -> str:
        """The address of this process's host."""
        ...

    @property
    def reaper(self) -> Reaper:
        """What cleans up after this process."""
        ...

    def place(self, bundles: Sequence[Bundle], what: str) -> Any:
        """Reserve `bundles`; `ConfigError` at once where the cluster is too small for `what` they are for."""
        ...

    def hosts(self, group: Any) -> list[str]:
        """The address of the host of each bundle that `place` reserved."""
        ...

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Any, int]) -> Actor:
        """Start an object of `cls` in a process of its own. `bundle`: what `place` returned, and an index."""
        ...

    def put(self, value: Any) -> Any:
        """An argument for calls to several actors, made ready once."""
        ...


async def within(seconds: float | None, what: str, awaitable: Awaitable[T]) -> T:
    """The call's result; `WorkerError` where it fails or takes over `seconds` (None: no limit)."""
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except CallFailed as error:
        raise WorkerError(f"{what} {error}") from error
    except TimeoutError:
        assert seconds is not None, "without a limit nothing takes too long"
        raise WorkerError(f"{what} did not answer within {seconds:g} s.") from None
