"""`Session`: one sample's conversation with the engine, and what its agent says of it."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlcore import (
    Completion,
    DataError,
    GenerationContext,
    Json,
    ModelError,
    RlcoreError,
    Sample,
    template_text,
)
from rlcore_session.chats import TOO_LONG, ApiError, Ask, Call, Turn
from rlcore_session.record import Plan, Record
from rlcore_toolkit import (
    ParsedToolCalls,
    ToolFormat,
    call_in_thread,
    parse_tool_calls,
    tool_format,
    turn_seed,
)

LONG_BYTES = 2**16
"""Requests of more bytes take others' time to tokenise: some milliseconds."""
PLAN_LIMIT_S = 30.0


class AbortedError(Exception):
    """Somebody ended the engine's request: the sample is not finished."""


class Session:
    """Answers the requests of one agent, which may come at the same time.

    `task`: what the agent is to do. `reward`, `parts`, `answer`: what it reported. `last`: its latest turn.
    `refused_for_length`: it asked for more than fits.
    """

    def __init__(
        self, ctx: GenerationContext, sample: Sample, *, max_turns: int, how: ToolFormat | None
    ) -> None:
        self.record = Record(ctx.tokenizer)
        self.reward: float | None = None
        self.parts: Mapping[str, float] = {}
        self.answer: str | None = None
        self.task: Mapping[str, Json] = {}
        self.last: Turn | None = None
        self.refused_for_length = False
        self.turns = 0
        self.malformed_calls = 0
        self.own_sampling = 0
        self._ctx = ctx
        self._sample = sample
        self._max_turns = max_turns
        self._format = how
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def failure(self) -> None:
        """Raises what ended the session from the engine's side; until then it waits."""
        await asyncio.shield(self._failure)

    def close(self) -> None:
        """Nobody waits for a failure any more."""
        if self._failure.done():
            self._failure.exception()  # it has been told, or comes too late
        else:
            self._failure.cancel()

    async def respond(self, ask: Ask) -> Sequence[Turn]:
        """The policy's next message, or so many as were asked for, each of which may be gone on from.

        Raises `ApiError` where the request cannot be answered.
        """
        if self.turns + ask.n > self._max_turns:
            self.refused_for_length |= self.turns >= self._max_turns  # fewer answers may be asked for
            had = f"its {self.turns} turns" if ask.n == 1 else f"{self.turns} turns, and is asked for {ask.n}"
            raise ApiError(400, f"The session has had {had} (--generator.max-turns {self._max_turns}).")
        number, self.turns = self.turns, self.turns + ask.n
        self.own_sampling += ask.asks_sampling
        if ask.tools and self._format is None:
            self._format = self._known_format()
        plan = await self._plan(ask)
        completions = await self._complete(plan, ask, number)
        turns = [self._turn(ask, done, number + place) for place, done in enumerate(completions)]
        # the first one is the last of the record, for it is what most clients read
        for turn in reversed(turns):
            self.record.add(plan, turn)
            self.last = turn
        return turns

    def report(
        self,
        *,
        reward: float | None = None,
        parts: Mapping[str, float] | None = None,
        answer: str | None = None,
    ) -> None:
        """What the agent says of its own work. Raises `ApiError` for what is no number or no text."""
        if parts is not None and not isinstance(parts, Mapping):
            raise ApiError(400, f"parts: found {parts!r}, expected an object of numbers.")
        number = None if reward is None else _finite("reward", reward)
        numbers = {name: _finite(f"parts.{name}", value) for name, value in (parts or {}).items()}
        if answer is not None and not isinstance(answer, str):
            raise ApiError(400, f"answer: found {answer!r}, expected a text.")
        self.reward = self.reward if number is None else number
        self.parts = {**self.parts, **numbers}
        self.answer = self.answer if answer is None else answer

    async def count(self, ask: Ask) -> int:
        """Prompt tokens of a request."""
        return len((await self._plan(ask)).prompt_ids)

    async def _plan(self, ask: Ask) -> Plan:
        """What the engine is to be asked; a long chat is written and tokenised beside the event loop."""
        of_prompt = self._sample.prompt.chat_template_kwargs
        ask = replace(ask, options={**of_prompt, **ask.options}) if of_prompt else ask
        try:
            if ask.size <= LONG_BYTES:
                return self.record.plan(ask)
            async with asyncio.timeout(PLAN_LIMIT_S):
                return await call_in_thread(lambda: self.record.plan(ask))
        except DataError as error:
            raise ApiError(400, str(error)) from error
        except TimeoutError as error:
            raise ApiError(400, f"The chat took longer than {PLAN_LIMIT_S:g} s to tokenise.") from error

    async def _complete(self, plan: Plan, ask: Ask, number: int) -> Sequence[Completion]:
        sampling, sample = self._ctx.sampling, self._sample
        prompt_tokens = len(plan.prompt_ids)
        room = min(sampling.max_tokens - plan.response_length, self._ctx.context_length - prompt_tokens)
        if room <= 0:
            self.refused_for_length = True
            raise ApiError(
                400,
                f"The chat has {prompt_tokens} tokens and leaves no room for an answer; "
                "--max-prompt-tokens and --max-response-tokens bound it.",
                code=TOO_LONG,
            )
        try:
            completions = await self._ctx.complete(
                plan.prompt_ids,
                n=ask.n,
                seed=turn_seed(sample.seed, number),
                rid=f"{sample.rollout_id}-{sample.attempt}.{number}",
                sampling=replace(
                    sampling, max_tokens=min(room, ask.max_tokens or room), stop=(*sampling.stop, *ask.stop)
                ),
            )
        except RlcoreError as error:
            self._fail(error)
            raise ApiError(503, str(error)) from error
        if any(done.finish_reason == "abort" for done in completions):
            self._fail(AbortedError())
            raise ApiError(503, "The request was aborted.")
        return completions

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _known_format(self) -> ToolFormat:
        try:
            return tool_format(template_text(self._ctx.tokenizer), "--generator.tool-format")
        except ModelError as error:
            raise ApiError(400, str(error)) from error

    def _turn(self, ask: Ask, completion: Completion, number: int) -> Turn:
        stop = _stop_in(ask, completion)
        text = completion.text.partition(stop)[0] if stop else completion.text
        parsed = ParsedToolCalls(content=text, calls=())
        if ask.tools:
            assert self._format is not None, "a request with tools finds the format"
            parsed = parse_tool_calls(text, self._format, ask.tools)
        self.malformed_calls += len(parsed.malformed)
        arguments = [json.dumps(call.arguments, ensure_ascii=False) for call in parsed.calls]
        calls = tuple(
            Call(id=f"call_{number}_{place}", name=call.name, arguments=arguments[place])
            for place, call in enumerate(parsed.calls)
        )
        finish = "length" if completion.finish_reason == "length" else "tool_calls" if calls else "stop"
        return Turn(
            id=f"{self._sample.rollout_id}-{self._sample.attempt}.{number}",
            content=parsed.content,
            calls=calls,
            finish=finish,
            stopped_by=stop,
            completion=completion,
        )


def _stop_in(ask: Ask, completion: Completion) -> str | None:
    """The first of the request's stop strings, which its answer doesn't show."""
    found = [stop for stop in ask.stop or () if stop in completion.text]
    return min(found, key=completion.text.index, default=None)


def _finite(name: str, value: object) -> float:
    """`value` of a report as a float. Raises `ApiError` where it is no finite number."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an int beyond floats
        number = math.inf
    if not math.isfinite(number):
        raise ApiError(400, f"{name}: found {value!r}, expected a finite number.")
    return number
