"""What a plugin of the kind `cluster` implements: the hosts of a run, and the processes on them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

ActorThread = Literal["watch", "write", "take", "stop", "broadcast"]

ACTOR_THREADS: Mapping[ActorThread, int] = {"watch": 1, "write": 1, "take": 1, "stop": 1, "broadcast": 4}
"""An actor's threads, beside that of its other calls. A broadcast may wait for an engine that hangs."""

Bundle = Mapping[str, float]
"""How much `CPU` and `GPU` to reserve together on one host."""


class CallFailed(Exception):  # noqa: N818 - says what became of a call, which is told with the actor's name
    """A call to an actor got no answer. The text continues a sentence that begins with the actor's name."""


class Actor(Protocol):
    """A process with an object in it. May be an argument of a call to another actor."""

    def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
        """The answer of a method. The call is on its way at once, before anybody awaits the answer.

        Calls of one `thread` are answered in order, as far as the thread is one (`ACTOR_THREADS`). Those
        without one share the main thread. Raises the method's own error where that is an `RlcoreError`. For
        any other error, and where the process ends, it raises `CallFailed`.
        """

    def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Like `call`, for code in another actor that is not asynchronous.

        Raises `CallFailed` where the answer takes over `limit_s`, too. The method itself goes on.
        """

    def kill(self) -> None:
        """End the process at once; it may have ended already."""


class Cluster(Protocol):
    """Kind `cluster`: hosts that the processes of a run are placed on.

    The factory starts nothing. rlcore then calls `prepare`, and `connect` when the run has passed its checks.
    All other methods come after `connect`. `close` is the last call, whatever failed before it.
    """

    def prepare(self, modules: Sequence[str]) -> None:
        """Begin what may go on while rlcore imports torch and checks the run.

        `modules`: what the processes of the run import. A cluster may import them ahead of time, or pass.
        """

    def connect(self, *, cpus: int, gpus: int, remove: Callable[[Path], None]) -> None:
        """Be ready to place processes.

        `cpus`: how many the run reserves. `gpus`: those of this machine. `remove(folder)` has a folder
        removed once this process is gone, however it ends. The handlers of signals stay as they are.
        ConfigError for what the user can mend; WorkerError.
        """

    def close(self) -> None:
        """End all processes of the run, and what `prepare` and `connect` have started."""

    @property
    def gpus(self) -> int:
        """GPUs in the whole cluster."""

    @property
    def here(self) -> str:
        """The address of this process's host."""

    def place(self, bundles: Sequence[Bundle], what: str) -> Any:
        """Reserve `bundles`; `ConfigError` at once where the cluster is too small for `what` they are for."""

    def hosts(self, group: Any) -> Sequence[str]:
        """The address of the host of each bundle that `place` reserved."""

    def devices(self, group: Any) -> Sequence[tuple[str, ...]]:
        """The GPUs of each bundle, by the names that CUDA_VISIBLE_DEVICES has for them on its host."""

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Any, int]) -> Actor:
        """Start an object of `cls` in a process of its own. `bundle`: what `place` returned, and an index.

        The process sees the GPUs of its bundle, unless `gpus` is 0. What the constructor raises is told by
        the calls.
        """

    async def watch(self, limit_s: float) -> None:
        """Raises `WorkerError` if a process of its own on this machine ends, or is stopped for `limit_s`.

        Never returns.
        """

    def put(self, value: Any) -> Any:
        """An argument for calls to several actors, made ready once."""
