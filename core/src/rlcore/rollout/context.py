"""The engines as a generator sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from rlcore.api.generation import Completion, GenerationClient, GroupScorer
from rlcore.api.tokens import Tokenizer, text_ids
from rlcore.api.types import Sample, Sampling


class StartBarrier:
    """Sends the first requests of a round to their engine together, so that every run computes the same
    batches.

    Each of the `members` joins or leaves. When all have done so, those that joined get the name of their
    session.
    """

    def __init__(self, name: str, members: int) -> None:
        self._name = name
        self._awaited = members
        self._joined = 0
        self._open = asyncio.Event()

    async def join(self) -> str:
        """Wait for the others.

        Returns the session of the request. A member that is cancelled meanwhile is left out.
        """
        self._joined += 1
        self._came()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            if not self._open.is_set():
                self._joined -= 1
                raise
            # The session counts this request already, so it must be sent. Cancel it at the next await
            # instead, where the client notices.
            task = asyncio.current_task()
            assert task is not None, "a coroutine runs in a task"
            task.uncancel()
            task.cancel()
        return f"{self._name}/{self._joined}"

    def leave(self) -> None:
        """This member makes no request."""
        self._came()

    def _came(self) -> None:
        self._awaited -= 1
        if self._awaited == 0:
            self._open.set()


UNBOUNDED = 2**31
"""A context length for engines without a limit."""


class Engines:
    """All engines. Their clients allow at most `concurrency` requests in flight for each.

    The place of a group in the round decides its engine, not the load, so that a run can be repeated.
    """

    def __init__(
        self,
        clients: Sequence[GenerationClient],
        tokenizer: Tokenizer,
        concurrency: int,
        *,
        name: str = "",
        context_length: int = UNBOUNDED,
    ) -> None:
        """`name`: a prefix for session names, which distinguishes them from others on the same engines."""
        assert clients, "a run has at least one engine"
        self._name = name
        self.clients = tuple(clients)
        self.tokenizer = tokenizer
        self.context_length = context_length
        self._concurrency = concurrency
        self._rounds = 0

    def width(self, requests: int = 1) -> int:
        """How many groups can be in flight at once, if each makes `requests` requests at a time."""
        return self._concurrency // requests * len(self.clients)

    def client_of(self, group_id: int) -> GenerationClient:
        """The engine that answers all of a group."""
        return self.clients[group_id % len(self.clients)]

    def contexts(
        self,
        count: int,
        sampling: Sampling,
        scorer: GroupScorer,
        *,
        together: bool,
        baseline: bool = False,
    ) -> list[EngineContext]:
        """The contexts of a round of `count` groups. With `baseline`, each is followed by a greedy one.

        `together`: on each engine, the first requests of all contexts begin together. `count` must then be at
        most `width`.
        """
        each = [sampling, greedy(sampling)] if baseline else [sampling]
        fits = count <= self.width(len(each))
        assert fits or not together, "a turn asks for no more than the engines are to have in flight"
        self._rounds += 1
        engines = len(self.clients)
        gates = [
            StartBarrier(f"{self._name}{self._rounds}", len(range(place, count, engines)) * len(each))
            if together
            else None
            for place in range(engines)
        ]
        return [
            EngineContext(
                self.clients[order % engines],
                self.tokenizer,
                how,
                scorer,
                gates[order % engines],
                context_length=self.context_length,
            )
            for order in range(count)
            for how in each
        ]


class TokenizerContext:
    """The half of a `GenerationContext` that asks nobody."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._context_length = context_length

    @property
    def sampling(self) -> Sampling:
        """How this rollout samples."""
        return self._sampling

    @property
    def context_length(self) -> int:
        """Tokens of prompt and response together that engine and trainer take."""
        return self._context_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self._tokenizer

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""
        return tuple(text_ids(self._tokenizer, text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class EngineContext(TokenizerContext):
    """The `GenerationContext` of one group. One engine answers all its requests, and may share prefixes.

    If it was made with a `gate`, call `close` once the group is generated.
    """

    def __init__(
        self,
        client: GenerationClient,
        tokenizer: Tokenizer,
        sampling: Sampling,
        scorer: GroupScorer,
        gate: StartBarrier | None = None,
        *,
        context_length: int = UNBOUNDED,
    ) -> None:
        super().__init__(tokenizer, sampling, context_length)
        self._client = client
        self._scorer = scorer
        self._gate = gate

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, seed: int, rid: str, sampling: Sampling | None = None
    ) -> Sequence[Completion]:
        """`n` completions of one prompt."""
        gate, self._gate = self._gate, None
        session = None if gate is None else await gate.join()
        return await self._client.generate(
            prompt_ids, sampling or self._sampling, n=n, seed=seed, rid=rid, session=session
        )

    def close(self) -> None:
        """The group is generated. Other groups need not wait for its first request any more."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of one group, scored by the run's reward."""
        return await self._scorer.score(samples)


def greedy(sampling: Sampling) -> Sampling:
    """`sampling` with the most probable token each time."""
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
