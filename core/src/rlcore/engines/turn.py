"""`Turn`: the requests of one session, so that all can be made again together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from rlcore.engines.client import EngineClient

Ask = Callable[[EngineClient], Awaitable[object]]


class Turn:
    """Of the session "NAME/N": what has been asked, and what of it is answered."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._left = int(session.rpartition("/")[2])
        self._answered: list[Ask] = []

    @contextmanager
    def member(self, ask: Ask) -> Iterator[None]:
        """`ask` is one of the N requests, answered (or given up) at the end."""
        try:
            yield
        finally:
            self._left -= 1
            self._answered.append(ask)

    @property
    def is_over(self) -> bool:
        """Whether all N are answered."""
        return self._left <= 0

    @property
    def answered(self) -> tuple[Ask, ...]:
        """What a new server must be asked again for the sake of the rest; nothing where none is left."""
        return tuple(self._answered) if not self.is_over else ()
