"""Engines that are disturbed in the midst of a session, for tests of what then becomes of it."""

import asyncio
from collections.abc import Callable

import pytest

from rlcore import Completion, EngineClient, PackedInts, Request, Sampling
from rlcore.engines.fleet import FleetEngine
from rlcore_machine.tasks import together
from rlcore_testing.engine_server import TOKEN, HereLauncher

MEMBERS = 6
LIMIT_S = 280.0


async def turn(engine: FleetEngine, name: str = "r") -> list[list[Completion]]:
    """One session: every other request is short, the rest last until they are disturbed.

    `name`: tells its requests from those of another session, which may come to the same server.
    """
    return await together(
        engine.generate(
            Request(
                input_ids=PackedInts(range(2, 5 + number)),
                sampling=Sampling(max_tokens=3 if number % 2 else 800),
                n=2,
                seed=number,
                rid=f"{name}{number}",
                session=f"1/{MEMBERS}",
            )
        )
        for number in range(MEMBERS)
    )


async def disturbed(
    engine: FleetEngine, launcher: HereLauncher, fault: Callable[[], object]
) -> list[list[Completion]]:
    """The answers of a turn; `fault` comes when the short requests are answered and the others are not."""
    async with EngineClient(launcher.url, TOKEN) as beside, asyncio.timeout(LIMIT_S):
        before = (await beside.server_info())["requests"]["finished"]
        work = asyncio.create_task(turn(engine, f"{id(engine)}-"))
        while (await beside.server_info())["requests"]["finished"] < before + MEMBERS:
            assert not work.done(), work
        await beside.pause("in_place")
        assert (await beside.server_info())["requests"]["finished"] < before + 2 * MEMBERS, "too late"
        fault()
        return await work


def check_whole(answers: list[list[Completion]], undisturbed: list[list[Completion]]) -> None:
    """Nothing is lost: each request has its answers, sampled by its seed with the same weights to their end.

    They are computed in other batches, so that a token deep in a long answer may come out otherwise.
    """
    assert [len(pair) for pair in answers] == [len(pair) for pair in undisturbed]
    for pair, expected in zip(answers, undisturbed, strict=True):
        for one, other in zip(pair, expected, strict=True):
            assert one.finish_reason in ("stop", "length")
            assert len(one.log_probs) == len(one.token_ids)
            assert one.token_ids[:3] == other.token_ids[:3]
            assert one.log_probs[:3] == pytest.approx(other.log_probs[:3], abs=1e-4)
            assert one.spans == other.spans
