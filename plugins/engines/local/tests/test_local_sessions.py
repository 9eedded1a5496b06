"""Requests that go out as one: on the real `local` server, and on servers that fail midway."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlcore import Completion, EngineClient, EngineError, RefusedError, Request, Sampling, UnreachableError
from rlcore_local.client import LocalClient
from rlcore_local.testing import LOCAL
from rlcore_machine import together
from rlcore_qwen.tiny import tiny
from rlcore_testing.engine_server import TOKEN, launch_of, serving
from rlcore_testing.tiny import without_end

LIMIT_S = 60.0
SHORT, LONG = Sampling(max_tokens=3), Sampling(max_tokens=1900)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, forked_servers: None) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    model = without_end(tiny(folder / "model"))
    with serving(launch_of(model, folder, context_length=2000), LOCAL) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[EngineClient]:
    async with LocalClient(url, TOKEN, timeout_s=LIMIT_S) as client:
        await client.capabilities()  # requests join at once
        yield client


def ask(
    client: EngineClient, number: int, session: str | None, *, n: int = 2, sampling: Sampling = SHORT
) -> asyncio.Task[list[Completion]]:
    asked = client.generate(
        Request(
            input_ids=(4, 5, 6 + number),
            sampling=sampling,
            n=n,
            seed=number,
            rid=f"r{number}",
            session=session,
        )
    )
    return asyncio.create_task(asked)


async def until(client: EngineClient, state: str, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.server_info())["requests"][state] != count:
            pass


async def test_each_gets_the_answers_to_its_own(client: EngineClient) -> None:
    sizes = (2, 1, 3, 2)
    alone = [await ask(client, number, None, n=n) for number, n in enumerate(sizes)]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        tasks = {number: ask(client, number, f"own-{order[0]}/4", n=sizes[number]) for number in order}
        found = [await tasks[number] for number in range(4)]
        assert [[one.token_ids for one in group] for group in found] == [
            [one.token_ids for one in group] for group in alone
        ]


async def test_an_order_of_arrival_changes_no_bit(client: EngineClient) -> None:
    found = []
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        tasks = {number: ask(client, number, f"order-{order[0]}/4", n=1 + number % 2) for number in order}
        found.append([[one.log_probs for one in await tasks[number]] for number in range(4)])
    assert found[0] == found[1]


async def test_answers_do_not_wait_for_those_of_others(client: EngineClient) -> None:
    long = ask(client, 0, "wait/2", sampling=LONG)
    short = ask(client, 1, "wait/2")
    try:
        assert len(await short) == 2
        await client.pause("in_place")
        assert not long.done()
    finally:
        await client.resume()
    await client.abort("r0")
    assert {one.finish_reason for one in await long} == {"abort"}


async def test_a_refusal_is_of_the_one_that_deserves_it(client: EngineClient) -> None:
    tasks = [ask(client, number, "refused/3") for number in (0, 10**6, 2)]
    with pytest.raises(RefusedError, match="token ids must be in"):
        await tasks[1]
    assert [len(await tasks[place]) for place in (0, 2)] == [2, 2]


async def test_what_nobody_waits_for_is_given_up(client: EngineClient) -> None:
    await client.pause("in_place")  # no sample ends by itself
    try:
        tasks = [ask(client, number, "left/3", sampling=LONG, n=1 + number) for number in range(3)]
        await until(client, "waiting", 6)
        for number, left in ((1, 4), (2, 1), (0, 0)):  # the first ones alone, the last one with the request
            tasks[number].cancel()
            await until(client, "waiting", left)
    finally:
        await client.resume()
    assert {type(found) for found in await asyncio.gather(*tasks, return_exceptions=True)} == {
        asyncio.CancelledError
    }


async def test_what_nobody_waits_for_is_not_sent(client: EngineClient) -> None:
    before = (await client.server_info())["requests"]["finished"]
    tasks = [ask(client, number, "unsent/3") for number in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert len(await ask(client, 2, "unsent/3")) == len(await tasks[1]) == 2
    assert (await client.server_info())["requests"]["finished"] == before + 4


async def test_one_that_is_refused_or_cancelled_before_it_is_made_is_not_waited_for(url: str) -> None:
    """One is cancelled while the client asks what the server can do; the other has a token that is none."""
    async with LocalClient(url, TOKEN, timeout_s=LIMIT_S, vocab_size=30) as client:
        tasks = [ask(client, number, "short/3") for number in (0, 1, 10**6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LIMIT_S / 4)
    assert isinstance(found[0], asyncio.CancelledError)
    assert isinstance(found[1], list)
    assert isinstance(found[2], EngineError)


async def test_one_that_never_comes_is_waited_for_with_a_limit(url: str) -> None:
    async with LocalClient(url, TOKEN, timeout_s=4.0) as client:
        with pytest.raises(UnreachableError, match=r"did not answer /generate within 4 s"):
            await ask(client, 0, "never/2")
        both = [ask(client, number, "never/2") for number in range(2)]
        found = await together(asyncio.wait_for(one, LIMIT_S) for one in both)
        assert [len(group) for group in found] == [2, 2]


async def test_the_end_of_a_client_ends_those_who_wait(url: str) -> None:
    client = LocalClient(url, TOKEN)
    await client.capabilities()
    waiting = ask(client, 0, "closed/2")
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(UnreachableError, match="was closed"):
        await asyncio.wait_for(waiting, LIMIT_S)


async def test_the_end_of_a_client_ends_what_is_under_way(url: str) -> None:
    """Also where a session waits for a slot, and one of it is answered or given up already."""
    client = LocalClient(url, TOKEN, concurrency=1)
    await client.capabilities()
    tasks = [ask(client, number, "busy/2", sampling=SHORT if number else LONG) for number in range(2)]
    queued = [ask(client, number, "queued/2") for number in (2, 3)]
    assert len(await tasks[1]) == 2
    queued[0].cancel()
    await client.close()
    for task in (tasks[0], queued[1]):
        with pytest.raises(UnreachableError, match=r"left a request unanswered|was closed"):
            await asyncio.wait_for(task, LIMIT_S)
    async with LocalClient(url, TOKEN) as beside:
        await until(beside, "running", 0)


@pytest.mark.parametrize("session", ["a", "a/0", "/2", "a/x"])
async def test_a_session_has_a_name_and_a_size(client: EngineClient, session: str) -> None:
    with pytest.raises(EngineError, match="expected NAME/N"):
        await ask(client, 0, session)


# --- servers that fail ---------------------------------------------------------------------------------


def line(index: int) -> bytes:
    meta = {
        "finish_reason": {"type": "length"},
        "weight_versions": [{"version": "default", "start": 0}],
        "output_token_logprobs": [[-0.5, index, None]],
    }
    answers = [{"text": "", "output_ids": [index], "meta_info": meta}]
    return json.dumps({"index": index, "answers": answers}).encode() + b"\n"


@asynccontextmanager
async def answering(
    *pieces: bytes, cut: bool = False, status: int = 200
) -> AsyncIterator[tuple[EngineClient, list[Any]]]:
    """A client, and the bodies that its server got. `pieces`: what each is answered; `cut`: and no end."""
    bodies: list[Any] = []

    async def info(_: web.Request) -> web.Response:
        return web.json_response(
            {"version": "1", "abilities": ["sessions", "seeds", "seeds_siblings"], "capabilities": []}
        )

    async def generate(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.01)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_get("/server_info", info)
    app.router.add_post("/generate", generate)
    async with TestServer(app) as server, LocalClient(str(server.make_url("")), "token") as client:
        yield client, bodies


async def test_one_request_is_sent_for_all() -> None:
    whole = b"".join(map(line, (2, 0, 3, 1)))
    async with answering(whole[:30], whole[30:200], whole[200:]) as (client, bodies):
        tasks = [ask(client, number, "sent/4", n=1 + number // 2) for number in (3, 1, 0, 2)]
        found = await together(asyncio.wait_for(one, LIMIT_S) for one in tasks)
    assert [one.token_ids for (one,) in found] == [(3,), (1,), (0,), (2,)]
    (body,) = bodies
    assert body["rid"] == [f"r{number}/0" for number in range(4)]
    assert [params["n"] for params in body["sampling_params"]] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("pieces", "cut", "error", "said"),
    [
        ([], True, UnreachableError, "cannot be reached"),
        ([], False, UnreachableError, "left a request unanswered"),
        ([b"<html>\n"], False, EngineError, "JSONDecodeError"),
        ([b'{"index": 7}\n'], False, EngineError, "failed: IndexError"),
    ],
)
async def test_an_answer_that_breaks_off_fails_those_without_one(
    pieces: list[bytes], cut: bool, error: type[EngineError], said: str
) -> None:
    async with answering(line(1), *pieces, cut=cut) as (client, bodies):
        tasks = [ask(client, number, "cut/2", n=1) for number in range(2)]
        assert len(await tasks[1]) == 1
        with pytest.raises(error, match=said):
            await asyncio.wait_for(tasks[0], LIMIT_S)
    assert len(bodies) == 1, "nothing is sent twice"


async def test_a_failure_of_the_server_is_told_to_all() -> None:
    async with answering(status=500) as (client, bodies):
        tasks = [ask(client, number, "failed/2") for number in range(2)]
        for task in tasks:
            with pytest.raises(RefusedError, match="HTTP 500"):
                await asyncio.wait_for(task, LIMIT_S)
    assert len(bodies) == 1


async def test_a_server_of_another_engine_is_refused() -> None:
    """Such as an SGLang server behind --engine-url: it names no capabilities."""

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "tp_size": 1})

    app = web.Application()
    app.router.add_get("/server_info", info)
    async with TestServer(app) as server, LocalClient(str(server.make_url("")), "token") as client:
        with pytest.raises(EngineError, match="expected a JSON object with 'capabilities': it is no engine"):
            await client.server_info()
