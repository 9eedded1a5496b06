"""`Fleet`: all engines of a run. What a server that is lost leaves undone is asked of another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from rlcore.api.errors import EngineError
from rlcore.api.generation import Completion
from rlcore.api.types import Sampling
from rlcore.engines.client import EngineClient
from rlcore.engines.supervised_engine import LostError, RunningServer, SupervisedEngine
from rlcore.engines.turn import Place, Turn

T = TypeVar("T")


class Fleet:
    """Slots that stand in for one another; they are started and stopped by their owner.

    A request goes to its own engine while that serves, otherwise to the next one that does; where none
    does, it waits. If its server is lost before it has answered, it is asked again.

    The requests of a session move together, those answered already included, to an engine that has no
    session under way: `local` then computes the same batches, and its answers stay bit-equal to those of
    an undisturbed run.
    """

    def __init__(self, slots: Sequence[SupervisedEngine]) -> None:
        self._slots = tuple(slots)
        self._turns: dict[tuple[int, str], Turn] = {}
        self._repeats: set[asyncio.Task[None]] = set()
        self._has_sessions: bool | None = None

    @property
    def clients(self) -> list[FleetEngine]:
        """One for each slot, in their order."""
        return [FleetEngine(self, index, slot) for index, slot in enumerate(self._slots)]

    async def answer(
        self, home: int, session: str | None, ask: Callable[[EngineClient, str | None], Awaitable[T]]
    ) -> T:
        """What `ask` gets of a server, that of slot `home` if possible, under the session's name there."""
        if session is None or not await self._knows_sessions():
            while True:
                slot, life = await self._found(home)
                with contextlib.suppress(LostError):
                    return await slot.once(life, ask(life.client, None))
        turn = self._turns.setdefault((home, session), Turn(home, session))
        try:
            with turn.member(ask):
                while True:
                    slot, life, name = await self._placed(turn, home)
                    with contextlib.suppress(LostError):
                        return await slot.once(life, ask(life.client, name))
        finally:
            if turn.over.is_set():
                self._turns.pop((home, session), None)

    async def stop(self) -> None:
        """End what nobody waits for. The slots are not its own."""
        for task in self._repeats:
            task.cancel()
        await asyncio.gather(*self._repeats, return_exceptions=True)

    async def _knows_sessions(self) -> bool:
        """Whether the servers, which are all alike, begin the requests of a session together."""
        if self._has_sessions is None:
            can = await self._slots[0].with_client(lambda client: client.capabilities())
            self._has_sessions = can.sessions
        return self._has_sessions

    async def _found(self, home: int) -> tuple[SupervisedEngine, RunningServer]:
        """The first server from `home` on."""
        while True:
            for slot in self._from(home):
                if slot.life is not None:
                    return slot, slot.life
            await first(slot.serving() for slot in self._slots)

    async def _placed(self, turn: Turn, home: int) -> Place:
        """Where the session is; where it was lost, its new place."""
        place = turn.place
        if place is None or (place.done() and not place.exception() and place.result()[1].ended.done()):
            turn.place = asyncio.ensure_future(self._moved(turn, home))
        assert turn.place is not None, "it has just got one"
        return await asyncio.shield(turn.place)

    async def _moved(self, turn: Turn, home: int) -> Place:
        is_first = turn.place is None
        slot, life = await (self._found(home) if is_first else self._free(turn, home))
        name = turn.new_name()
        for ask in turn.answered:
            task = asyncio.create_task(self._repeat(ask(life.client, name)))
            self._repeats.add(task)
            task.add_done_callback(self._repeats.discard)
        return slot, life, name

    async def _free(self, turn: Turn, home: int) -> tuple[SupervisedEngine, RunningServer]:
        """The first server from `home` on that has no session under way."""
        while True:
            busy: list[Turn] = []
            for slot in self._from(home):
                if (life := slot.life) is None:
                    continue
                others = [one for one in self._on(life) if one is not turn]
                if not others:
                    return slot, life
                busy += others
            coming = [slot.serving() for slot in self._slots if slot.life is None]
            await first([*coming, *(one.over.wait() for one in busy)])

    def _on(self, life: RunningServer) -> Iterator[Turn]:
        """The sessions under way there."""
        for turn in self._turns.values():
            place = turn.place
            if place is not None and place.done() and not place.exception() and place.result()[1] is life:
                yield turn

    def _from(self, home: int) -> tuple[SupervisedEngine, ...]:
        return self._slots[home:] + self._slots[:home]

    @staticmethod
    async def _repeat(asked: Awaitable[object]) -> None:
        """Only for the company of the others: its answer is known."""
        with contextlib.suppress(EngineError):
            await asked


class FleetEngine:
    """One engine of a run, as generators ask it (`rlcore.GenerationClient`)."""

    def __init__(self, fleet: Fleet, home: int, slot: SupervisedEngine) -> None:
        self._fleet = fleet
        self._home = home
        self._slot = slot

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: Sampling,
        *,
        n: int,
        seed: int,
        rid: str,
        session: str | None,
    ) -> list[Completion]:
        """As `EngineClient.generate`, of whichever server lives to answer."""

        async def ask(client: EngineClient, name: str | None) -> list[Completion]:
            return await client.generate(input_ids, sampling, n=n, seed=seed, rid=rid, session=name)

        return await self._fleet.answer(self._home, session, ask)

    async def abort(self) -> None:
        """Ends every request that is under way at this engine, those of others too."""
        await self._slot.abort()

    async def weight_version(self) -> int:
        """As `EngineClient.weight_version`."""
        return await self._slot.weight_version()


async def first(awaitables: Iterator[Awaitable[object]] | Sequence[Awaitable[object]]) -> None:
    """Returns when one of them has; raises what it raises. The others are canceled."""
    tasks = [asyncio.ensure_future(one) for one in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
