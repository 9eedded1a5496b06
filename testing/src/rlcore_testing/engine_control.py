"""How requests are watched, held and ended, and memory given back."""

from __future__ import annotations

import asyncio
import uuid
from itertools import pairwise

import pytest

from rlcore.api.types import Sampling
from rlcore.engines.client import EngineClient, PauseMode
from rlcore_testing.engine_abilities import Abilities
from rlcore_testing.engine_reference import (
    COLD,
    LONG,
    TOLERANCE,
    References,
    Running,
    TooLateError,
    gap,
    in_time,
    request_of,
    running,
)


class ControlConformance(Abilities):
    """How requests are watched, held and ended, and memory given back."""

    async def test_a_stream_grows_to_the_answer(self, client: EngineClient, references: References) -> None:
        states = [
            answer async for answer in client.stream(request_of(Sampling(max_tokens=40, temperature=COLD)))
        ]
        assert len(states) > 1
        for before, after in pairwise(states):
            assert after.token_ids[: len(before.token_ids)] == before.token_ids
            assert before.finish_reason == "pending"
        assert states[-1].finish_reason == "length"
        assert len(states[-1].token_ids) == 40
        assert gap(references[0], states[-1], t=COLD) <= TOLERANCE

    @in_time
    async def test_abort_returns_what_was_sampled(self, client: EngineClient, references: References) -> None:
        self.needs("aborts")
        rid = f"{uuid.uuid4().hex}-1"  # new in each try: no late abort hits the next
        kept, ended = await running(client, rid=f"{rid}0"), await running(client, rid=rid)
        await client.abort(rid)
        answer = await ended.result
        if answer.finish_reason == "length" or (
            kept.result.done() and kept.result.result().finish_reason == "length"
        ):
            await kept.result
            raise TooLateError("the request ran to its end, aborted or not")
        assert answer.finish_reason == "abort"
        assert 0 < len(answer.token_ids) == len(answer.log_probs) < LONG.max_tokens
        assert gap(references[0], answer, t=COLD) <= TOLERANCE
        assert not kept.result.done()
        await client.abort()
        assert (await kept.result).finish_reason == "abort"

    async def test_its_load_counts_the_requests_that_run(self, client: EngineClient) -> None:
        if not (await client.capabilities()).loads:
            pytest.skip("it does not say how many requests run")
        client.take_tally()
        request = await running(client, rid="looked-at")
        async with asyncio.timeout(60.0):
            while True:  # a server may say what was true a moment ago
                await client.look()
                tally = client.take_tally()
                if tally.running == [1]:
                    break
                await asyncio.sleep(0.1)
        assert tally.waiting == [0]
        await client.abort("looked-at")
        await request.result

    async def test_abort_ends_all_samples_of_a_request(self, client: EngineClient) -> None:
        self.needs("aborts")
        task = asyncio.create_task(client.generate(request_of(LONG, n=3, rid="three")))
        async with asyncio.timeout(60.0):
            while not task.done():
                await client.abort("three")
                await asyncio.sleep(0.02)
        assert [answer.finish_reason for answer in await task] == ["abort"] * 3

    @pytest.mark.parametrize("mode", ["retract", "in_place"])
    @in_time
    async def test_pause_holds_and_resume_goes_on(
        self, client: EngineClient, references: References, mode: PauseMode
    ) -> None:
        self.needs("takes_weights_under_way")
        request = await running(client)
        await client.pause(mode)
        try:
            # What came in the first second may have been sampled before the pause.
            await asyncio.sleep(1.0)
            if request.result.done():
                raise TooLateError("paused, it sampled on to its end, or had come to it before")
            assert await _stands_still(request), f"paused, it sampled on: {request.tokens} tokens"
        finally:  # or every later test would wait for its limit
            await client.resume()
        answer = await request.result
        assert answer.finish_reason == "length"
        assert len(answer.token_ids) == LONG.max_tokens
        assert gap(references[0], answer, t=COLD) <= TOLERANCE

    @in_time
    async def test_pause_by_abort_ends_the_requests(self, client: EngineClient) -> None:
        self.needs("aborts")
        request = await running(client)
        await client.pause("abort")
        try:
            answer = await request.result
        finally:
            await client.resume()
        if answer.finish_reason == "length":
            raise TooLateError("the request ran to its end, paused or not")
        assert answer.finish_reason == "abort"
        await client.generate(request_of(Sampling(max_tokens=2)))

    async def test_memory_is_released_and_resumed(self, client: EngineClient, references: References) -> None:
        if not (await client.capabilities()).memory:
            pytest.skip("the server gives no memory back")
        await client.flush_cache()
        await client.release_memory()
        await client.resume_memory()
        (answer,) = await client.generate(request_of(Sampling(max_tokens=16)))
        assert gap(references[0], answer) <= TOLERANCE


async def _stands_still(request: Running) -> bool:
    """Whether no token comes for a second, once those have come that were on their way."""
    for _ in range(10):
        tokens = request.tokens
        await asyncio.sleep(1.0)
        if request.result.done() or request.tokens == tokens:
            return not request.result.done()
    return False
