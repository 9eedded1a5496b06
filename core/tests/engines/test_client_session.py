"""Requests that go out as one: on the real `local` server, and on servers that fail midway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlcore.engines.client import EngineClient, together
from rlcore.engines.client_http import RefusedError, UnreachableError
from rlcore.interfaces import Completion
from rlcore.testing.engine_server import TOKEN, launch_of, serving
from rlcore.types import Sampling
from rlcore_qwen.tiny import tiny

LIMIT_S = 60.0
SHORT, LONG = Sampling(max_tokens=3), Sampling(max_tokens=400)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    model = tiny(folder / "model")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        held = json.loads((model / name).read_text())
        kept = {key: value for key, value in held.items() if not key.startswith("eos_token")}
        (model / name).write_text(
            json.dumps(kept)
        )  # without an end, a sample is as long as it is asked to be
    with serving(launch_of(model, folder)) as url:
        yield url


@pytest.fixture
async def client(url: str) -> AsyncIterator[EngineClient]:
    async with EngineClient(url, TOKEN, timeout_s=LIMIT_S) as client:
        yield client


def ask(
    client: EngineClient, number: int, session: str | None, *, n: int = 2, sampling: Sampling = SHORT
) -> asyncio.Task[list[Completion]]:
    asked = client.generate((4, 5, 6 + number), sampling, n=n, seed=number, rid=f"r{number}", session=session)
    return asyncio.create_task(asked)


async def until_running(client: EngineClient, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await client.server_info())["requests"]["running"] != count:
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
        tasks = {number: ask(client, number, f"order-{order[0]}/4") for number in order}
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
    assert {len(one.token_ids) for one in await long} == {400}


async def test_a_refusal_is_of_the_one_that_deserves_it(client: EngineClient) -> None:
    tasks = [ask(client, number, "refused/3") for number in (0, 10**6, 2)]
    with pytest.raises(RefusedError, match="token ids must be in"):
        await tasks[1]
    assert [len(await tasks[place]) for place in (0, 2)] == [2, 2]


async def test_what_nobody_waits_for_is_given_up(client: EngineClient) -> None:
    tasks = [ask(client, number, "left/2", sampling=LONG) for number in range(2)]
    await until_running(client, 4)
    await client.pause("in_place")  # no sample ends by itself
    try:
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        await until_running(client, 4)  # somebody waits for the other
        tasks[1].cancel()
        await until_running(client, 0)
    finally:
        await client.resume()
    assert all(task.cancelled() for task in tasks)


async def test_one_that_never_comes_is_waited_for_with_a_limit(url: str) -> None:
    async with EngineClient(url, TOKEN, timeout_s=0.3) as client:
        with pytest.raises(UnreachableError, match=r"did not answer /generate within 0\.3 s"):
            await ask(client, 0, "never/2")
        both = [ask(client, number, "never/2") for number in range(2)]
        found = await together(asyncio.wait_for(one, LIMIT_S) for one in both)
        assert [len(group) for group in found] == [2, 2]


# --- servers that fail ---------------------------------------------------------------------------------


def line(index: int) -> bytes:
    meta = {
        "finish_reason": {"type": "length"},
        "weight_version": "default",
        "output_token_logprobs": [[-0.5, 7, None]],
    }
    answers = [{"text": "", "output_ids": [7], "meta_info": meta}]
    return json.dumps({"index": index, "answers": answers}).encode() + b"\n"


@asynccontextmanager
async def answering(*pieces: bytes, cut: bool = False) -> AsyncIterator[tuple[EngineClient, list[Any]]]:
    """A client, and the bodies that its server got. `pieces`: what each is answered; `cut`: and no end."""
    bodies: list[Any] = []

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"engine": "local", "version": "1", "capabilities": []})

    async def generate(request: web.Request) -> web.StreamResponse:
        bodies.append((request.headers["X-Rlcore-Session"], await request.json()))
        response = web.StreamResponse()
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
    async with TestServer(app) as server, EngineClient(str(server.make_url("")), "token") as client:
        yield client, bodies


async def test_one_request_is_sent_for_all_that_want_as_many_samples() -> None:
    whole = line(1) + line(0)
    async with answering(whole[:30], whole[30:200], whole[200:]) as (client, bodies):
        tasks = [ask(client, number, "sent/4", n=1 + number // 2) for number in range(4)]
        found = await together(asyncio.wait_for(one, LIMIT_S) for one in tasks)
        assert [one.token_ids for (one,) in found] == [(7,)] * 4
    assert sorted(body["sampling_params"][0]["n"] for _, body in bodies) == [1, 2]
    assert [session for session, _ in bodies] == ["sent/2"] * 2
    assert sorted(rid for _, body in bodies for rid in body["rid"]) == [
        f"r{number}/0/" for number in range(4)
    ]


@pytest.mark.parametrize("cut", [True, False])
async def test_an_answer_that_breaks_off_fails_those_without_one(cut: bool) -> None:
    async with answering(line(1), cut=cut) as (client, bodies):
        tasks = [ask(client, number, "cut/2", n=1) for number in range(2)]
        assert len(await tasks[1]) == 1
        with pytest.raises(UnreachableError):
            await asyncio.wait_for(tasks[0], LIMIT_S)
    assert len(bodies) == 1, "nothing is sent twice"
