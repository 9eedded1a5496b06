"""Actors that are plain processes of this machine: their answers, their errors and their ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlcore import CallFailed, ConfigError, EngineError, WorkerError
from rlcore.workers.actors import within
from rlcore_processes.actor_process import Link
from rlcore_processes.cluster import ProcessActor, ProcessCluster
from rlcore_processes.config import ProcessesConfig

LIMIT_S = 30.0


class TwoWordsError(EngineError):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class ReadableOnce:
    """What only one process can read."""

    def __init__(self, pid: int) -> None:
        if pid != os.getpid():
            raise ImportError("no such module here")
        self._pid = pid

    def __reduce__(self) -> tuple[type[ReadableOnce], tuple[int]]:
        return ReadableOnce, (self._pid,)


class Counter:
    """An actor."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise EngineError("It cannot start below zero.")
        self._count = start

    def add(self, amount: int, seconds: float = 0) -> int:
        """The sum so far."""
        time.sleep(seconds)
        self._count += amount
        return self._count

    def add_elsewhere(self, other: ProcessActor, amount: int) -> int:
        """The sum of another counter, after `add`."""
        answer: int = other.ask("add", amount, limit_s=LIMIT_S)
        return answer

    def length(self, content: bytes) -> int:
        """The number of bytes that were sent."""
        return len(content)

    def watch(self) -> None:
        """Never returns."""
        time.sleep(1000)

    def variable(self, name: str) -> str | None:
        """A variable of the process's environment."""
        return os.environ.get(name)

    def refuse(self) -> None:
        """An error of rlcore's."""
        raise EngineError("Refused.")

    def fail(self) -> None:
        """Another error."""
        raise ValueError("too odd")

    def refuse_in_two_words(self) -> None:
        """An error that pickle writes and cannot read."""
        raise TwoWordsError("Much", "refused.")

    def give_what_cannot_be_read(self) -> Any:
        """An answer that pickle writes and cannot read elsewhere."""
        return ReadableOnce(os.getpid())

    def take(self, anything: Any) -> str:
        """Its name."""
        return type(anything).__name__

    def give_what_cannot_travel(self) -> Any:
        """An error of pickle's."""
        return lambda: None


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with pytest.MonkeyPatch.context() as patch, closing(ProcessCluster(ProcessesConfig())) as made:
        patch.syspath_prepend(Path(__file__).parents[4])  # where the class of an actor is imported from
        made.prepare(["rlcore_processes.actor_process", __name__])
        made.connect(cpus=1, gpus=0, remove=_nothing)
        yield made


def _nothing(folder: Path) -> None:
    """This cluster makes no folder."""


@pytest.fixture
def counter(cluster: ProcessCluster) -> Iterator[ProcessActor]:
    actor = started(cluster, 1)
    yield actor
    actor.kill()


def started(cluster: ProcessCluster, start: int) -> ProcessActor:
    return cluster.actor(Counter, start, gpus=0, bundle=(cluster.place([{"CPU": 1}], "It"), 0))


async def test_one_that_dies_before_it_is_made_is_told_by_its_calls(cluster: ProcessCluster) -> None:
    """As where the process that forks them all is killed while a run starts."""
    actor = started(cluster, 1)
    actor.kill()
    with pytest.raises(WorkerError, match="died"):
        await within(LIMIT_S, "It", actor.call("add", 1))
    actor._link.construct(Counter, [1])
    with pytest.raises(WorkerError, match="died"):
        await within(LIMIT_S, "It", actor.call("add", 1))


async def test_calls_are_answered_in_order_and_threads_beside_them(counter: ProcessActor) -> None:
    watching = asyncio.ensure_future(counter.call("watch", thread="watch"))
    slow, fast = counter.call("add", 1, 0.2), counter.call("add", 10)
    assert await within(LIMIT_S, "It", counter.call("variable", "HOME", thread="broadcast")) is not None
    assert [await slow, await fast] == [2, 12]
    assert not watching.done()
    watching.cancel()


async def test_an_actor_calls_another(cluster: ProcessCluster, counter: ProcessActor) -> None:
    other = started(cluster, 100)
    assert await within(LIMIT_S, "It", counter.call("add_elsewhere", other, 5)) == 105
    assert await within(LIMIT_S, "It", other.call("add", 0)) == 105
    other.kill()


async def test_large_arguments_are_made_ready_once(cluster: ProcessCluster, counter: ProcessActor) -> None:
    content = cluster.put(bytes(50_000_000))
    answers = [counter.call("length", content) for _ in range(2)]
    assert [await within(LIMIT_S, "It", answer) for answer in answers] == [50_000_000] * 2


async def test_errors_are_told(counter: ProcessActor, cluster: ProcessCluster) -> None:
    with pytest.raises(EngineError, match=r"^Refused\.$"):
        await within(LIMIT_S, "It", counter.call("refuse"))
    with pytest.raises(WorkerError, match=r"^It failed: ValueError: too odd\.$") as failed:
        await within(LIMIT_S, "It", counter.call("fail"))
    assert "in fail" in failed.value.__cause__.__notes__[0], "where it was"  # type: ignore[union-attr]  # a note was added
    with pytest.raises(WorkerError, match=r"^It failed: (AttributeError|PicklingError): "):
        await within(LIMIT_S, "It", counter.call("give_what_cannot_travel"))
    with pytest.raises(WorkerError, match=r"did not answer within 0\.1 s"):
        await within(0.1, "It", counter.call("add", 1, 1.0))
    unmade = started(cluster, -1)
    with pytest.raises(EngineError, match=r"^It cannot start below zero\.$"):
        await within(LIMIT_S, "It", unmade.call("add", 1))
    with pytest.raises(EngineError, match=r"^It cannot start below zero\.$"):
        await within(LIMIT_S, "It", unmade.call("add", 1))


async def test_what_cannot_be_read_fails_its_call_alone(
    counter: ProcessActor, cluster: ProcessCluster
) -> None:
    """The calls beside it and after it are answered."""
    watching = asyncio.ensure_future(counter.call("watch", thread="watch"))
    mine = ReadableOnce(os.getpid())
    for call in (counter.call("take", mine), counter.call("take", cluster.put(mine))):
        with pytest.raises(WorkerError, match=r"^It failed: ImportError: no such module here\.$"):
            await within(LIMIT_S, "It", call)
    said = r"^It gave an answer that cannot be read here: ImportError: no such module here\.$"
    with pytest.raises(WorkerError, match=said):
        await within(LIMIT_S, "It", counter.call("give_what_cannot_be_read"))
    with pytest.raises(WorkerError, match=r"^It failed: TwoWordsError: Much refused\.$"):
        await within(LIMIT_S, "It", counter.call("refuse_in_two_words"))
    with pytest.raises((AttributeError, pickle.PicklingError)):
        await counter.call("take", lambda: None)
    assert await within(LIMIT_S, "It", counter.call("add", 1)) == 2
    assert not watching.done()
    watching.cancel()


async def test_a_death_is_told_to_who_waits_and_who_comes(counter: ProcessActor) -> None:
    waiting = asyncio.ensure_future(within(None, "It", counter.call("watch", thread="watch")))
    await within(LIMIT_S, "It", counter.call("add", 1))
    counter.kill()
    for call in (waiting, within(LIMIT_S, "It", counter.call("add", 1))):
        with pytest.raises(WorkerError, match=r"^It died: SIGKILL ended its process\.$"):
            await call


def test_a_stranger_is_not_answered(counter: ProcessActor) -> None:
    address = counter.__reduce__()[1][0]
    stranger = Link(address, "00" * 32, lambda: "it hung up.")
    with pytest.raises(CallFailed, match=r"died: it hung up\."):
        stranger.call("add", [1]).result(LIMIT_S)
    assert counter.ask("add", 1, limit_s=LIMIT_S) == 2


def test_a_stranger_who_says_nothing_holds_up_nobody(counter: ProcessActor) -> None:
    address, key = counter.__reduce__()[1]
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(address)
        friend = Link(address, key, lambda: "it hung up.")
        assert friend.call("add", [1]).result(LIMIT_S) == 2


async def test_an_actor_ends_with_its_owner(cluster: ProcessCluster) -> None:
    actor = started(cluster, 1)
    await within(LIMIT_S, "It", actor.call("add", 1))
    process = actor._process
    assert process is not None
    with socket.socket(fileno=os.dup(actor._link._connection.fileno())) as connection:
        connection.shutdown(socket.SHUT_RDWR)
    assert process.wait(LIMIT_S) == 0


def test_gpus_are_divided_and_counted(monkeypatch: pytest.MonkeyPatch, cluster: ProcessCluster) -> None:
    monkeypatch.setattr(cluster, "gpus", 4)
    bundles = [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cluster.place(bundles, "They") == [[], ["0", "1"], ["2"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    group = cluster.place(bundles, "They")
    assert group == [[], ["4", "5"], ["6"]]
    assert cluster.hosts(group) == [cluster.here] * 3
    with pytest.raises(ConfigError, match="They need 6 GPUs, and this machine has 4: lower --ranks"):
        cluster.place(bundles * 2, "They")
    actor = cluster.actor(Counter, 0, gpus=0.5, bundle=(group, 1))
    assert actor.ask("variable", "CUDA_VISIBLE_DEVICES", limit_s=LIMIT_S) == "4,5"
    actor.kill()
