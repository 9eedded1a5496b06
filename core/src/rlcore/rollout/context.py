"""The engines as a generator sees them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

from rlcore.api.generation import Completion, GenerationClient, GroupScorer, Request
from rlcore.api.packed import PackedInts
from rlcore.api.run_config import RunConfig
from rlcore.api.tokens import Tokenizer, text_ids
from rlcore.api.types import Sample, Sampling
from rlcore.compose.evals import EvalConfig
from rlcore.data.chat import turn_ends
from rlcore_machine.tasks import together

D = TypeVar("D")
T = TypeVar("T")


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
        self.leave()
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
        """Nobody need wait for this member any more: it has joined, or makes no request."""
        self._awaited -= 1
        if self._awaited == 0:
            self._open.set()


UNBOUNDED = 2**31
"""A context length for engines without a limit."""


@dataclass(eq=False)
class Engines:
    """All engines. Their clients allow at most `concurrency` requests in flight for each.

    The place of a group in the round decides its engine, not the load, so that a run can be repeated. `name`:
    a prefix for session names, which distinguishes them from others on the same engines.
    """

    clients: Sequence[GenerationClient]
    tokenizer: Tokenizer
    concurrency: int
    _: KW_ONLY
    name: str = ""
    context_length: int = UNBOUNDED

    def __post_init__(self) -> None:
        assert self.clients, "a run has at least one engine"
        self._ends, self._rounds = tuple(end.token_id for end in turn_ends(self.tokenizer)), 0

    def client_of(self, group_id: int) -> GenerationClient:
        """The engine that answers all of a group."""
        return self.clients[group_id % len(self.clients)]

    async def for_each(
        self,
        draws: Sequence[D],
        make: "Callable[[D, Sequence[EngineContext]], Coroutine[Any, Any, T]]",
        samplings: Sequence[Sampling],
        scorer: GroupScorer,
        *,
        in_step: bool,
    ) -> list[T]:
        """What `make` returns for each draw, in their order. It gets a context for each of `samplings`.

        The tokens that end a turn in the chat template end a response too: of a base model they are not those
        of its `config.json`.

        `in_step`: the first requests of all contexts begin together, so that the engines compute the same
        batches in every run. It takes as many turns as are needed to have all of a turn in flight.
        """
        samplings = [replace(each, stop_token_ids=(*each.stop_token_ids, *self._ends)) for each in samplings]
        # An engine begins a session when all its requests are there: one without a free slot would stop it.
        width = self.concurrency // len(samplings) * len(self.clients)
        turn = width if in_step and width > 0 else max(len(draws), 1)
        results: list[T] = []
        for start in range(0, len(draws), turn):
            part = draws[start : start + turn]
            contexts = self._contexts(len(part), samplings, scorer, in_step=in_step and width > 0)
            results += await together(make(*each) for each in zip(part, contexts, strict=True))
        return results

    def _contexts(
        self, count: int, samplings: Sequence[Sampling], scorer: GroupScorer, *, in_step: bool
    ) -> "list[list[EngineContext]]":
        """The contexts of a turn of `count` draws."""
        self._rounds += 1
        engines = len(self.clients)
        gates = [
            # As many members as this engine gets contexts of the turn.
            StartBarrier(f"{self.name}{self._rounds}", len(range(place, count, engines)) * len(samplings))
            if in_step
            else None
            for place in range(engines)
        ]
        return [
            [
                EngineContext(
                    self.clients[order % engines],
                    self.tokenizer,
                    sampling,
                    scorer,
                    gates[order % engines],
                    context_length=self.context_length,
                )
                for sampling in samplings
            ]
            for order in range(count)
        ]


def sampling_of(run: RunConfig, evaluation: EvalConfig | None = None) -> Sampling:
    """How a run samples the responses that it trains on, or those of one of its evaluations."""
    settings = evaluation or run.sampling
    return Sampling(
        max_tokens=(evaluation and evaluation.max_tokens) or run.sampling.max_response_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
        stop=run.sampling.stop,
        stop_token_ids=run.sampling.stop_token_ids,
    )


class ContextBase(ABC):
    """The part of a `GenerationContext` that is the same wherever its requests go.

    `tokenizer`: the model's. `sampling`: how this rollout samples. `context_length`: tokens of prompt and
    response together that engine and trainer take.
    """

    tokenizer: Tokenizer
    sampling: Sampling
    context_length: int

    @abstractmethod
    async def generate(self, request: Request) -> Sequence[Completion]:
        """The completions of a request."""

    async def complete(
        self,
        prompt_ids: Sequence[int],
        *,
        n: int = 1,
        seed: int,
        rid: str,
        sampling: Sampling | None = None,
        policy: str = "",
    ) -> Sequence[Completion]:
        """`n` completions of one prompt."""
        ids, sampling = PackedInts(prompt_ids), sampling or self.sampling
        return await self.generate(
            Request(input_ids=ids, sampling=sampling, n=n, seed=seed, rid=rid, policy=policy)
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text, without special tokens."""
        return text_ids(self.tokenizer, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


@dataclass(eq=False)
class EngineContext(ContextBase):
    """The `GenerationContext` of one group. One engine answers all its requests, and may share prefixes.

    If it was made with a `gate`, call `close` once the group is generated.
    """

    client: GenerationClient
    tokenizer: Tokenizer
    sampling: Sampling
    scorer: GroupScorer
    gate: StartBarrier | None = None
    _: KW_ONLY
    context_length: int = UNBOUNDED

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The engine's completions."""
        gate, self.gate = self.gate, None
        # The first request alone: when later ones are made depends on what came back.
        if gate is not None:
            request = replace(request, session=await gate.join())
        return await self.client.generate(request)

    def close(self) -> None:
        """The group is generated. Other groups need not wait for its first request any more."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.leave()

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of one group, scored by the run's reward."""
        return await self.scorer.score(samples)
