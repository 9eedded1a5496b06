"""What a generator sees of the engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from rlcore.data.tokens import Tokenizer
from rlcore.interfaces import Completion
from rlcore.types import Sampling


class Client(Protocol):
    """An engine that answers: `rlcore.engines.client.EngineClient`."""

    async def generate(
        self, input_ids: Sequence[int], sampling: Sampling, *, n: int, seed: int, rid: str
    ) -> Sequence[Completion]:
        """`n` completions. Raises `EngineError` where the engine cannot give them."""
        ...


class Engines:
    """All engines. Each client bounds its own requests in flight.

    The engine of a group follows from the group's number, not from load, so that a run can be repeated.
    """

    def __init__(self, clients: Sequence[Client], tokenizer: Tokenizer) -> None:
        assert clients, "a run has at least one engine"
        self._clients = tuple(clients)
        self._tokenizer = tokenizer

    def context(self, number: int, sampling: Sampling) -> EngineContext:
        """The context of group `number`."""
        return EngineContext(self._clients[number % len(self._clients)], self._tokenizer, sampling)


class EngineContext:
    """The `GenerationContext` of one group: one engine answers all of it, and may share prefixes."""

    def __init__(self, client: Client, tokenizer: Tokenizer, sampling: Sampling) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._sampling = sampling

    @property
    def sampling(self) -> Sampling:
        """How this rollout samples."""
        return self._sampling

    async def complete(
        self, prompt_ids: Sequence[int], *, n: int = 1, seed: int, rid: str, sampling: Sampling | None = None
    ) -> Sequence[Completion]:
        """`n` completions of one prompt."""
        return await self._client.generate(prompt_ids, sampling or self._sampling, n=n, seed=seed, rid=rid)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def greedy(sampling: Sampling) -> Sampling:
    """`sampling` without chance."""
    return replace(sampling, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
