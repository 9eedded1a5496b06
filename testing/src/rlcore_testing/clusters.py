"""What every cluster must fulfill, as a suite to subclass.

    class TestMyCluster(ClusterConformance):
        part = Part(name="slurm", factory="acme.cluster:Slurm", config=SlurmConfig())

Properties share a cluster, connected as a run connects it, with `Counter`s as actors. Those that end a
cluster have one of their own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import SkipTest

import psutil

from rlcore.api.cluster import ACTOR_THREADS, Actor, ActorThread, Bundle, CallFailed, Cluster
from rlcore.api.errors import ConfigError, EngineError, WorkerError
from rlcore_testing.cluster_actor import Counter
from rlcore_testing.conformance import Conformance

CPUS, GPUS = 32, 2
"""The devices of a cluster that takes what it is told. Nothing computes on either."""
CALLS = 20
QUIET_S = 1.5
"""How long `watch` is seen to find nothing."""
STOPPED_S = 1.0
ASKED_S = 0.3
"""How long one actor waits for another that does not answer."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class ClusterConformance(Conformance):
    """Subclass it as `Test…` and give `part`."""

    limit_s: ClassVar[float] = 60.0
    """Seconds that an answer, a refusal or an end may take."""

    def own_processes(self, cluster: Cluster) -> list[int]:
        """The processes on this machine that the connected cluster cannot do without: `watch` tells their
        ends. Of a cluster without any, that is not asked.
        """
        return []

    # --- the properties --------------------------------------------------------------------------------

    def test_building_it_starts_nothing(self) -> None:
        """It is built before the run is known to start."""
        children, threads = _children(), set(threading.enumerate())
        with closing(self.part.build()):
            assert _children() <= children, "its factory starts a process"
            assert set(threading.enumerate()) <= threads, "its factory starts a thread"

    def test_it_can_be_closed_before_it_is_connected(self) -> None:
        """A run that is refused by its checks never connects."""
        children = _children()
        with closing(self.part.build()) as cluster:
            cluster.prepare([Counter.__module__])
        self._gone(_children() - children, "closed after `prepare`")

    def test_signals_are_left_to_the_run(self) -> None:
        """Its handlers save a checkpoint and stop what was started."""
        with self._connected():
            replaced = type(self)._replaced
        assert not replaced, f"`connect` replaces the handler of {replaced[0]}"

    def test_bundles_have_hosts(self) -> None:
        """One for each bundle, in order; an actor is a process of its own, on the host of its bundle."""
        with self._connected() as cluster:
            group = cluster.place(_bundles(2), "The counters")
            hosts, devices = list(cluster.hosts(group)), list(cluster.devices(group))
            assert len(hosts) == 2, f"{len(hosts)} hosts of 2 bundles"
            assert [tuple(given) for given in devices] == [(), ()], f"bundles without a GPU have {devices}"
            actors = [self._start(cluster, (group, index)) for index in range(2)]
            places = [self._answer(actor, "place") for actor in actors]
            assert len(set(places)) == 2, "two actors are in one process"
            assert (socket.gethostname(), os.getpid()) not in places, "an actor is in this process"
            for (name, _), host in zip(places, hosts, strict=True):
                near = "here" if name == socket.gethostname() else "elsewhere"
                said = "here" if host == cluster.here else "elsewhere"
                assert near == said, f"an actor is {near}, and its bundle {said}"

    def test_each_bundle_has_gpus_of_its_own(self) -> None:
        """An actor sees those of its bundle, by the names that `devices` has for them."""
        with self._connected() as cluster:
            if cluster.gpus < GPUS:
                raise SkipTest(f"it has {cluster.gpus} GPUs")
            group = cluster.place(_bundles(GPUS, gpus=1), "The counters")
            devices, hosts = cluster.devices(group), cluster.hosts(group)
            for own in devices:
                assert len(own) == 1, f"a bundle of one GPU has {own}"
            assert len(set(zip(hosts, devices, strict=True))) == GPUS, f"bundles share GPUs: {devices}"
            for index in range(GPUS):
                actor = self._start(cluster, (group, index), gpus=1)
                seen = self._answer(actor, "gpus")
                assert seen == ",".join(devices[index]), f"an actor on {devices[index]} sees {seen!r}"

    def test_what_is_too_large_is_refused_at_once(self) -> None:
        """With one sentence that says for what it was; nobody waits for GPUs that never come."""
        with self._connected() as cluster:
            begin = time.monotonic()
            try:
                cluster.place(_bundles(1, gpus=cluster.gpus + 1), "The counters")
            except ConfigError as error:
                took, text = time.monotonic() - begin, str(error)
                assert "The counters" in text, f"the refusal does not say what for: {text}"
                assert took < self.limit_s / 2, f"the refusal takes {took:.0f} s"
            else:
                raise AssertionError(f"it has {cluster.gpus} GPUs, and places a bundle of one more")
            actor = self._actor(cluster)
            assert self._answer(actor, "add", 1) == 1

    def test_calls_are_answered_in_order(self) -> None:
        """Each leaves at once, awaited or not."""
        with self._connected() as cluster:
            actor = self._actor(cluster)

            async def asked() -> list[list[int]]:
                calls = [actor.call("record", number) for number in range(CALLS)]
                return [await call for call in reversed(calls)]  # the last one first

            numbers = self._run(asked())[0]
            assert numbers == list(range(CALLS)), f"calls are made in the order {numbers}"

    def test_named_threads_are_beside_the_other_calls(self) -> None:
        """Else a long step would look like the end of its process."""
        with self._connected() as cluster:
            actor = self._actor(cluster)

            async def asked() -> bool:
                waiting = actor.call("wait", self.limit_s)
                for thread in ACTOR_THREADS:
                    await self._beside(actor.call("add", 1, thread=thread), f"the thread {thread}")
                meeting = [  # which would wait for longer than they may take
                    actor.call("meet", self.limit_s, thread="broadcast")
                    for _ in range(ACTOR_THREADS["broadcast"])
                ]
                room = f"{len(meeting)} calls of the thread broadcast at a time"
                await self._beside(asyncio.gather(*meeting), room)
                await self._beside(actor.call("release", thread="watch"), "the thread watch")
                return bool(await waiting)

            assert self._run(asked()), "the call without a thread did not go on"

    def test_calls_of_one_thread_are_answered_in_order(self) -> None:
        with self._connected() as cluster:
            actor, thread = self._actor(cluster), _WRITE

            async def asked() -> list[int]:
                calls = [actor.call("record", number, thread=thread) for number in range(CALLS)]
                return list((await asyncio.gather(*calls))[-1])

            numbers = self._run(asked())
            assert numbers == list(range(CALLS)), f"the thread {thread} makes calls in the order {numbers}"

    def test_errors_are_told(self) -> None:
        """rlcore's own as it is, another one by its name; afterwards the actor goes on."""
        with self._connected() as cluster:
            actor = self._actor(cluster)
            error = self._error(actor, "refuse")
            assert isinstance(error, EngineError), f"an EngineError arrives as {error!r}"
            assert str(error) == "Refused.", f"an EngineError says {str(error)!r}"
            error = self._error(actor, "fail")
            assert isinstance(error, CallFailed), f"a ValueError arrives as {error!r}, not as CallFailed"
            assert "ValueError: too odd" in str(error), f"a ValueError is told as {str(error)!r}"
            error = self._error(actor, "give_what_cannot_travel")
            assert isinstance(error, CallFailed), f"an answer that cannot travel arrives as {error!r}"
            assert self._answer(actor, "add", 1) == 1

    def test_the_error_of_a_constructor_is_told_by_the_calls(self) -> None:
        with self._connected() as cluster:
            error = self._error(self._actor(cluster, -1), "add", 1)
            assert isinstance(error, EngineError | CallFailed), f"it arrives as {error!r}"
            assert "below zero" in str(error), f"it is told as {str(error)!r}"

    def test_a_killed_actor_is_told_to_who_waits_and_who_comes(self) -> None:
        """Kill it again: it may have ended already."""
        with self._connected() as cluster:
            actor = self._actor(cluster)
            self._answer(actor, "add", 1)

            async def killed() -> list[Exception]:
                waiting = asyncio.ensure_future(actor.call("wait", 2 * self.limit_s, thread=_WATCH))
                await asyncio.sleep(0)
                actor.kill()
                return [await self._failed(waiting), await self._failed(actor.call("add", 1))]

            for error in self._run(killed()):
                assert isinstance(error, CallFailed), f"the end of an actor arrives as {error!r}"
            actor.kill()

    def test_an_actor_that_ends_is_told(self) -> None:
        """Its text goes on after the actor's name."""
        with self._connected() as cluster:
            error = self._error(self._actor(cluster), "end", 3)
            assert isinstance(error, CallFailed), f"the end of an actor arrives as {error!r}"
            assert str(error)[:1].islower(), f"{str(error)!r} does not go on after the actor's name"

    def test_an_actor_calls_another(self) -> None:
        with self._connected() as cluster:
            group = cluster.place(_bundles(2), "The counters")
            first, second = (self._start(cluster, (group, index), 100 * index) for index in range(2))
            assert self._answer(first, "add_elsewhere", second, 5, self.limit_s) == 105
            assert self._answer(second, "add", 0) == 105

    def test_an_actor_that_asks_another_waits_within_its_limit(self) -> None:
        """Else a trainer would wait for a critic that hangs."""
        with self._connected() as cluster:
            group = cluster.place(_bundles(2), "The counters")
            first, second = (self._start(cluster, (group, index)) for index in range(2))
            self._answer(second, "add", 1)
            answer = self._answer(first, "wait_elsewhere", second, self.limit_s / 2, ASKED_S)
            assert answer.startswith("CallFailed: "), f"an answer after the limit arrives as {answer}"

    def test_what_is_put_arrives_in_several_calls(self) -> None:
        with self._connected() as cluster:
            actor = self._actor(cluster)
            for size in (1_000, 10_000_000):  # a cluster may keep only large values apart
                ready = cluster.put(bytes(size))
                for _ in range(2):
                    length = self._answer(actor, "length", ready)
                    assert length == size, f"{length} bytes of {size} arrive"

    def test_nothing_is_told_while_all_is_well(self) -> None:
        """`watch` never returns."""
        with self._connected() as cluster:
            self._answer(self._actor(cluster), "add", 1)

            async def watched() -> None:
                task = asyncio.ensure_future(cluster.watch(STOPPED_S))
                done, _ = await asyncio.wait([task], timeout=QUIET_S)
                assert not done, f"`watch` ends with {task.exception() or 'an answer'!r}"
                task.cancel()

            self._run(watched())

    def test_the_end_of_a_process_of_its_own_is_told(self) -> None:
        with self._alone() as cluster:
            os.kill(self._own_process(cluster), signal.SIGKILL)
            self._check_watch(cluster)

    def test_a_process_of_its_own_that_is_stopped_is_told(self) -> None:
        """It is alive, and answers nobody."""
        with self._alone() as cluster:
            own = psutil.Process(self._own_process(cluster))
            own.suspend()
            try:
                self._check_watch(cluster)
            finally:
                if own.is_running():
                    own.resume()

    def test_nothing_is_left_of_it(self) -> None:
        """No process here, and no folder that it did not have `remove` take away."""
        self.teardown_class()
        children = _children()
        with self._alone() as cluster:
            actor = self._actor(cluster)
            host, pid = self._answer(actor, "place")
            here = {psutil.Process(pid)} if host == socket.gethostname() else set()
            started = (_children() | here) - children
        self._gone(started, "closed")

    # --- how they are checked --------------------------------------------------------------------------

    _shared: ClassVar[tuple[Cluster, ExitStack] | None] = None
    _replaced: ClassVar[list[str]] = []
    """The signals whose handler `connect` has replaced."""

    _started: ClassVar[tuple[Actor, ...]] = ()

    @classmethod
    def teardown_class(cls) -> None:
        """Close the cluster that properties share."""
        if cls._shared is not None:
            _, stack = cls._shared
            cls._shared = None
            stack.close()

    @contextmanager
    def _connected(self) -> Iterator[Cluster]:
        """The cluster that properties share. The actors that are started meanwhile end."""
        cls = type(self)
        if cls._shared is None:
            stack = ExitStack()
            cls._shared = stack.enter_context(self._alone()), stack
        try:
            yield cls._shared[0]
        finally:
            for actor in cls._started:
                actor.kill()
            cls._started = ()

    @contextmanager
    def _alone(self) -> Iterator[Cluster]:
        """A cluster of one property. A process may be in one only, so the shared one ends before."""
        self.teardown_class()
        folders: list[Path] = []
        handlers = {number: signal.getsignal(number) for number in ENDING}
        cluster: Cluster = self.part.build()
        try:
            with closing(cluster):
                cluster.prepare([Counter.__module__])
                cluster.connect(cpus=CPUS, gpus=GPUS, remove=folders.append)
                kept = {number.name: signal.getsignal(number) == handlers[number] for number in ENDING}
                type(self)._replaced = [name for name, is_same in kept.items() if not is_same]
                yield cluster
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _actor(self, cluster: Cluster, count: int = 0) -> Actor:
        group = cluster.place(_bundles(1), "The counter")
        return self._start(cluster, (group, 0), count)

    def _start(self, cluster: Cluster, bundle: tuple[Any, int], count: int = 0, gpus: float = 0) -> Actor:
        actor = cluster.actor(Counter, count, gpus=gpus, bundle=bundle)
        type(self)._started += (actor,)
        return actor

    def _run(self, asked: Coroutine[Any, Any, T]) -> T:
        async def limited() -> T:
            async with asyncio.timeout(self.limit_s):
                return await asked

        try:
            return asyncio.run(limited())
        except TimeoutError:
            raise AssertionError(f"no answer within {self.limit_s:g} s") from None

    def _answer(self, actor: Actor, method: str, *arguments: Any) -> Any:
        async def asked() -> Any:
            return await actor.call(method, *arguments)

        return self._run(asked())

    def _error(self, actor: Actor, method: str, *arguments: Any) -> Exception:
        async def asked() -> Exception:
            return await self._failed(actor.call(method, *arguments))

        return self._run(asked())

    async def _failed(self, call: Awaitable[Any]) -> Exception:
        try:
            answer = await call
        except (AssertionError, TimeoutError):
            raise
        except Exception as error:
            return error
        raise AssertionError(f"a call that fails is answered with {answer!r}")

    async def _beside(self, call: Awaitable[Any], what: str) -> None:
        try:
            async with asyncio.timeout(self.limit_s / 2):
                await call
        except TimeoutError:
            raise AssertionError(f"{what}: no answer while another call goes on") from None

    def _own_process(self, cluster: Cluster) -> int:
        own = self.own_processes(cluster)
        if not own:
            raise SkipTest("`own_processes` names none")
        return own[0]

    def _check_watch(self, cluster: Cluster) -> None:
        """`watch` raises WorkerError in time."""

        async def watched() -> Exception:
            return await self._failed(cluster.watch(STOPPED_S))

        error = self._run(watched())
        assert isinstance(error, WorkerError), f"`watch` raises {error!r}, not a WorkerError"

    def _gone(self, processes: set[psutil.Process], when: str) -> None:
        _, left = psutil.wait_procs(processes, timeout=self.limit_s / 2)
        alive = [
            process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]
        assert not alive, f"{when}, it leaves a process behind: {alive[0].name()}"


_WATCH: ActorThread = "watch"
_WRITE: ActorThread = "write"


def _bundles(count: int, gpus: float = 0) -> list[Bundle]:
    return [{"CPU": 1.0, "GPU": gpus} if gpus else {"CPU": 1.0}] * count


def _children() -> set[psutil.Process]:
    """What descends from this process."""
    return set(psutil.Process().children(recursive=True))
