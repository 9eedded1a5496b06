"""`RequestGate` stops and restarts all requests of a run, for publications and checkpoints."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, replace

from rlcore import Completion, EngineContext, GenerationClient, Request
from rlcore_machine import together
from rlcore_toolkit.partial import INTERRUPTED, Partial, RequestKey, join, request_key, without_unread_text

ABORT_AGAIN_S = 0.05
"""Seconds between aborts: a request may reach an engine just after an abort of all requests."""


class RequestGate:
    """A gate in front of the engines. While it is closed, no request is made."""

    def __init__(self, clients: Sequence[GenerationClient]) -> None:
        self._clients = clients
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way = 0
        self._interruptions = 0

    async def close(self, *, interrupt: bool) -> None:
        """Close, and wait until no request is in progress. `interrupt`: end them now, with what they have."""
        self._open.clear()
        self._interruptions += interrupt
        while not self._idle.is_set():
            if not interrupt:
                await self._idle.wait()
                return
            await together(client.abort() for client in self._clients)
            try:
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await self._idle.wait()
            except TimeoutError:
                continue

    def open(self) -> None:
        """Let requests through again."""
        self._open.set()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Callable[[], bool]]:
        """Wait for the open gate, then make a request inside.

        Yields a function that tells if it was interrupted.
        """
        while not self._open.is_set():  # it may be closed again before those who waited are woken
            await self._open.wait()
        self._under_way += 1
        self._idle.clear()
        begin = self._interruptions
        try:
            yield lambda: self._interruptions > begin
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()


@dataclass(eq=False)
class ContinuingContext(EngineContext):
    """The context of a group whose requests may be interrupted without the generator noticing.

    `requests` lets each through. Everything that the engine samples is kept in `notes`. When a group is
    generated again, what is there is not sampled again. An interrupted completion continues as a new request,
    whose prompt ends with the tokens so far.
    """

    _: KW_ONLY
    requests: RequestGate
    notes: MutableMapping[RequestKey, Partial]

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The completions of a request, in as many pieces as it takes."""
        key = request_key(request)
        if key not in self.notes:
            completions, is_interrupted = await self._ask(request)
            if not is_interrupted and any(
                completion.finish_reason == INTERRUPTED for completion in completions
            ):
                return completions  # ended by someone else, whose reasons are the generator's to judge
            partial = tuple(map(without_unread_text, completions))
            self.notes[key] = Partial(request=request, completions=partial)
        await together(self._finish(request, index) for index in range(request.n))
        return self.notes[key].completions

    async def _finish(self, request: Request, index: int) -> None:
        """Go on with one sample of a noted request until it ends by itself."""
        key, sampling = request_key(request), request.sampling
        while True:
            completion = self.notes[key].completions[index]
            if completion.finish_reason != INTERRUPTED:
                return
            length = len(completion.token_ids)
            continuation = replace(
                request,
                input_ids=request.input_ids + completion.token_ids,
                sampling=replace(sampling, max_tokens=sampling.max_tokens - length),
                n=1,
                seed=request.seed + index,
                rid=f"{request.rid}+{index}.{length}",
            )
            (rest,), is_interrupted = await self._ask(continuation)
            joined = join(completion, rest, self.decode, sampling.stop)
            siblings = list(self.notes[key].completions)  # they have gone on meanwhile
            siblings[index] = without_unread_text(joined) if is_interrupted else joined
            self.notes[key] = replace(self.notes[key], completions=tuple(siblings))
            if joined.finish_reason == INTERRUPTED and not is_interrupted:
                return

    async def _ask(self, request: Request) -> tuple[tuple[Completion, ...], bool]:
        """The engine's answers, and whether the gate was closed on them."""
        async with self.requests.request() as is_interrupted:
            completions = await super().generate(request)
            return tuple(completions), is_interrupted()
