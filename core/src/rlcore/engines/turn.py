"""`Turn`: the requests of one session, which one server must answer together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from rlcore.engines.client import EngineClient
from rlcore.engines.supervised_engine import RunningServer, SupervisedEngine

Ask = Callable[[EngineClient, str | None], Awaitable[object]]
"""A request to a server, under the name of a session."""
Place = tuple[SupervisedEngine, RunningServer, str]
"""Which server answers, in whose slot, and the session's name there."""


class Turn:
    """Of the session "NAME/N" of engine `home`: where it is, what of it is under way, what was answered.

    `over` is set once nothing of it is under way any more.
    """

    def __init__(self, home: int, session: str) -> None:
        self._home = home
        self._name, _, self._size = session.rpartition("/")
        self._active = 0
        self._moves = 0
        self.over = asyncio.Event()
        self.answered: list[Ask] = []
        self.place: asyncio.Future[Place] | None = None

    @contextmanager
    def member(self, ask: Ask) -> Iterator[None]:
        """`ask` is one of the N requests, answered (or given up) at the end."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self.answered.append(ask)
            if not self._active:
                self.over.set()

    def new_name(self) -> str:
        """A name for the session that no server has heard yet."""
        self._moves += 1
        return f"{self._name}.{self._home}.{self._moves}/{self._size}"
