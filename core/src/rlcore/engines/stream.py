"""Weights on their way bucket by bucket: from the trainer to all engines that load at the same time."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlcore.api.errors import EngineError
from rlcore_machine.tasks import end_tasks


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The tensors in a bucket, in their order. `dtypes`: torch's names, without `torch.`."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One bucket of a version.

    `content`: how the publisher passes the tensors on, for the driver. `by_rank`: that of each train rank
    that sends, for engines that take it from the ranks on their own devices. `checksums`: Hugging Face name →
    `rlcore.checksum`, if the engine tells its own. `is_last`: no other piece follows.
    """

    bucket: Bucket
    content: Any = None
    by_rank: Mapping[int, Any] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    is_last: bool = False


Pieces = AsyncGenerator[Piece, None]


class OutdatedError(EngineError):
    """The trainer has newer weights than those that were asked for."""


class WeightStream:
    """One version of the trainer's weights. `source` begins to make its pieces anew at each call.

    Its argument are the ranks that send; none: all that may.

    Engines that load it at the same time take a `share` each. A piece is made once, after all engines have
    taken up the one before, so that at most one piece exists. A single engine takes the stream `alone`.
    """

    def __init__(self, source: Callable[[Sequence[int]], Pieces], shares: int) -> None:
        """`shares`: how many will be taken; each must be closed."""
        self._source = source
        self._pieces: Pieces | None = None
        self._open = self._awaited = shares
        self._next: asyncio.Future[Piece | None] = asyncio.get_running_loop().create_future()
        self._making: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def alone(self, ranks: Sequence[int] = ()) -> Pieces:
        """All pieces, for one engine, from `ranks`; none: from all that may send."""
        return self._source(ranks)

    def share(self) -> "Share":
        """The share of one engine."""
        return Share(self)

    async def close(self) -> None:
        """Make no more pieces. Called when every share is closed."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await self._ending

    async def _end(self) -> None:
        if self._making is not None:
            await end_tasks([self._making])
        if self._pieces is not None:
            await self._pieces.aclose()

    def _ask(self) -> asyncio.Future[Piece | None]:
        """The next piece, for one share."""
        asked = self._next
        self._awaited -= 1
        self._make_if_all_asked()
        return asked

    def _leave(self, asked: asyncio.Future[Piece | None]) -> None:
        """A share takes no more. `asked`: what it asked for last."""
        self._open -= 1
        if asked is not self._next:  # else it has been counted already
            self._awaited -= 1
        self._make_if_all_asked()
        if not self._open and self._ending is None:  # while the engines check what they have
            self._ending = asyncio.create_task(self._end())

    def _make_if_all_asked(self) -> None:
        if self._awaited or not self._open:
            return
        # The next future is there before this one is done: a fast engine asks for the piece after at once.
        asked, self._next = self._next, asyncio.get_running_loop().create_future()
        self._awaited = self._open
        self._making = asyncio.create_task(self._make(asked))

    async def _make(self, asked: asyncio.Future[Piece | None]) -> None:
        if self._pieces is None:
            self._pieces = self._source(())
        try:
            asked.set_result(await anext(self._pieces, None))
        except Exception as error:  # who waits for the piece raises it
            asked.set_exception(error)
            asked.exception()  # seen: everybody may have left


class Share:
    """The pieces of a stream, for one of the engines that take them together."""

    def __init__(self, stream: WeightStream) -> None:
        self._stream = stream
        self._asked = stream._ask()  # made while the engine gets ready
        self._is_open = True

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces in order. The next one is made once every share has asked for it."""
        while self._is_open:
            piece = await asyncio.shield(self._asked)  # the others wait for the same piece
            if piece is None:
                return
            yield piece
            if piece.is_last:
                self.close()
            else:
                self._asked = self._stream._ask()

    def close(self) -> None:
        """Leave: the other shares no longer wait for this one. May be called again."""
        if self._is_open:
            self._is_open = False
            self._stream._leave(self._asked)
