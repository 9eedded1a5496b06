"""The suite of clusters names what a cluster lacks: `processes`, with one fault each."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlcore import Actor, ActorThread, Bundle, CallFailed, Cluster, ConfigError, EngineError, Part
from rlcore_processes.cluster import ProcessActor, ProcessCluster
from rlcore_processes.config import ProcessesConfig
from rlcore_testing.clusters import ClusterConformance
from rlcore_testing.conformance import PREFIX

Group = list[list[str]]


class Eager(ProcessCluster):
    def __init__(self, config: ProcessesConfig) -> None:
        super().__init__(config)
        self.prepare(())


class Clinging(ProcessCluster):
    made: ClassVar[list[Clinging]] = []

    def close(self) -> None:
        self.made.append(self)


class Grasping(ProcessCluster):
    def connect(self, *, cpus: int, gpus: int, remove: Callable[[Path], None]) -> None:
        super().connect(cpus=cpus, gpus=gpus, remove=remove)
        signal.signal(signal.SIGTERM, lambda number, frame: None)


class Short(ProcessCluster):
    def hosts(self, group: Group) -> list[str]:
        return super().hosts(group)[:1]


class Astray(ProcessCluster):
    def hosts(self, group: Group) -> list[str]:
        return ["10.0.0.2"] * len(group)


class Crowded(ProcessCluster):
    def __init__(self, config: ProcessesConfig) -> None:
        super().__init__(config)
        self._first: ProcessActor | None = None

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Group, int]) -> ProcessActor:
        self._first = self._first or super().actor(cls, *arguments, gpus=gpus, bundle=bundle)
        return self._first


class Sharing(ProcessCluster):
    def place(self, bundles: Sequence[Bundle], what: str) -> Group:
        return [["0"] if devices else [] for devices in super().place(bundles, what)]


class Blind(ProcessCluster):
    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Group, int]) -> ProcessActor:
        return super().actor(cls, *arguments, gpus=0, bundle=bundle)


class Boundless(ProcessCluster):
    def place(self, bundles: Sequence[Bundle], what: str) -> Group:
        return [[str(device) for device in range(int(bundle.get("GPU", 0)))] for bundle in bundles]


class Curt(ProcessCluster):
    def place(self, bundles: Sequence[Bundle], what: str) -> Group:
        try:
            return super().place(bundles, what)
        except ConfigError:
            raise ConfigError("Too large.") from None


class Unready(ProcessCluster):
    def put(self, value: Any) -> Any:
        return b""


class Restless(ProcessCluster):
    async def watch(self, limit_s: float) -> None:
        return


class Careless(ProcessCluster):
    async def watch(self, limit_s: float) -> None:
        await asyncio.Event().wait()


class Wrapped(ProcessCluster):
    """Its actors have a fault."""

    fault: ClassVar[type[FaultyActor]]

    def actor(self, cls: type, *arguments: Any, gpus: float, bundle: tuple[Group, int]) -> Any:
        return self.fault(super().actor(cls, *arguments, gpus=gpus, bundle=bundle))


class FaultyActor:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
        return self._actor.call(method, *arguments, thread=thread)

    def kill(self) -> None:
        self._actor.kill()


class Lazy(Wrapped):
    class fault(FaultyActor):  # noqa: N801 - it stands for the class variable
        async def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Any:
            return await self._actor.call(method, *arguments, thread=thread)


class SingleThreaded(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
            return self._actor.call(method, *arguments)


class Narrow(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Awaitable[Any]:
            return self._actor.call(method, *arguments, thread="write" if thread == "broadcast" else thread)


class Wrapping(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        async def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Any:
            try:
                return await self._actor.call(method, *arguments, thread=thread)
            except EngineError as error:
                raise CallFailed(f"failed: {error}") from error


class Raw(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        async def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Any:
            try:
                return await self._actor.call(method, *arguments, thread=thread)
            except CallFailed as error:
                raise RuntimeError(str(error)) from error


class Forgiving(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        async def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Any:
            try:
                return await self._actor.call(method, *arguments, thread=thread)
            except (CallFailed, EngineError):
                return None


class Silent(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        async def call(self, method: str, *arguments: Any, thread: ActorThread | None = None) -> Any:
            try:
                return await self._actor.call(method, *arguments, thread=thread)
            except CallFailed:
                await asyncio.Event().wait()


class Unlimited(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
            return self._actor.ask(method, *arguments, limit_s=60.0)


class Bare(Wrapped):
    class fault(FaultyActor):  # noqa: N801
        def ask(self, method: str, *arguments: Any, limit_s: float) -> Any:
            try:
                return self._actor.ask(method, *arguments, limit_s=limit_s)
            except CallFailed:
                raise TimeoutError from None


class Immortal(Wrapped):
    made: ClassVar[list[Actor]] = []

    class fault(FaultyActor):  # noqa: N801
        def kill(self) -> None:
            Immortal.made.append(self._actor)


class Sound(ClusterConformance):
    """What the clusters below are but for their faults."""

    part = Part(name="processes", factory="rlcore_processes.cluster:ProcessCluster", config=ProcessesConfig())

    def own_processes(self, cluster: Cluster) -> list[int]:
        assert isinstance(cluster, ProcessCluster)
        return [cluster._forks.pid]


@pytest.fixture
def ended() -> Iterator[None]:
    """What the clusters themselves don't end."""
    yield
    for actor in Immortal.made:
        actor.kill()
    for cluster in Clinging.made:
        ProcessCluster.close(cluster)
    Immortal.made.clear()
    Clinging.made.clear()


KILLED = "a killed actor is told to who waits and who comes"
WITHIN = "an actor that asks another waits within its limit"


@pytest.mark.grid
@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("cluster", "missing", "reason"),
    [
        (Eager, "building it starts nothing", "its factory starts a process"),
        (Clinging, "it can be closed before it is connected", "closed after `prepare`, it leaves a process"),
        (Clinging, "nothing is left of it", "closed, it leaves a process behind"),
        (Grasping, "signals are left to the run", "`connect` replaces the handler of SIGTERM"),
        (Short, "bundles have hosts", "1 hosts of 2 bundles"),
        (Astray, "bundles have hosts", "an actor is here, and its bundle elsewhere"),
        (Crowded, "bundles have hosts", "two actors are in one process"),
        (Sharing, "each bundle has gpus of its own", "bundles share GPUs"),
        (Blind, "each bundle has gpus of its own", r"an actor on \('0',\) sees None"),
        (Boundless, "what is too large is refused at once", "it has 2 GPUs, and places a bundle of one more"),
        (Curt, "what is too large is refused at once", "does not say what for: Too large"),
        (Lazy, "calls are answered in order", r"calls are made in the order \[19"),
        (SingleThreaded, "named threads are beside the other calls", "the thread watch: no answer while"),
        (Narrow, "named threads are beside the other calls", "4 calls of the thread broadcast at a time"),
        (Wrapping, "errors are told", "an EngineError arrives as CallFailed"),
        (Raw, "errors are told", "a ValueError arrives as RuntimeError"),
        (Forgiving, "errors are told", "a call that fails is answered with None"),
        (Forgiving, "the error of a constructor is told by the calls", "is answered with None"),
        (Raw, "an actor that ends is told", "the end of an actor arrives as RuntimeError"),
        (Silent, "an actor that ends is told", "no answer within"),
        (Silent, KILLED, "no answer within"),
        (Immortal, KILLED, "no answer within"),
        (Unlimited, WITHIN, "an answer after the limit arrives as the answer False"),
        (Bare, WITHIN, "an answer after the limit arrives as TimeoutError, not as CallFailed"),
        (Unready, "what is put arrives in several calls", "0 bytes of 1000 arrive"),
        (Restless, "nothing is told while all is well", "`watch` ends with"),
        (Careless, "the end of a process of its own is told", "no answer within"),
        (Careless, "a process of its own that is stopped is told", "no answer within"),
    ],
)
def test_a_cluster_with_a_fault(
    cluster: type[ProcessCluster], missing: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # an actor imports the fault of another one
    part = Part(name="faulty", factory=f"{__name__}:{cluster.__name__}", config=ProcessesConfig())
    suite = Sound.with_values(part=part, limit_s=4.0)
    try:
        with pytest.raises(AssertionError, match=reason):
            getattr(suite(), PREFIX + missing.replace(" ", "_"))()
    finally:
        suite.teardown_class()
