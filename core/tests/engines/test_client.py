"""The client against real servers of its own making: refusals, silence, time-outs, odd shapes on the wire."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlcore import EngineClient, EngineError, Request, Sampling, Span
from rlcore_machine.network import free_port
from rlcore_machine.tasks import together

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

INFO: Mapping[str, Any] = {"version": "1", "abilities": ["seeds"]}


def answer(tokens: list[int], **meta: Any) -> dict[str, Any]:
    return {
        "text": "text",
        "output_ids": tokens,
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": tokens[-1]},
            "prompt_tokens": 3,
            "weight_versions": [{"version": "default", "start": 0}],
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            **meta,
        },
    }


@asynccontextmanager
async def serving(handlers: Mapping[str, Handler], **options: Any) -> AsyncIterator[EngineClient]:
    """A client of a server that has `handlers` beside its information."""

    async def info(_: web.Request) -> web.Response:
        return web.json_response(INFO)

    app = web.Application()
    for path, handler in {"/server_info": info, **handlers}.items():
        app.router.add_route("*", path, handler)
    async with (
        TestServer(app) as server,
        EngineClient(str(server.make_url("")), "token", **options) as client,
    ):
        yield client


async def test_a_seeded_group_is_a_batch_with_a_seed_and_an_id_for_each_sample() -> None:
    bodies: list[Any] = []

    async def generate(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        assert request.headers["Authorization"] == "Bearer token"
        return web.json_response([answer([4, 5]), answer([6, 2])])

    async with serving({"/generate": generate}) as client:
        sampling = Sampling(max_tokens=9, temperature=0.5, stop=("x",), stop_token_ids=(7,))
        found = await client.generate(Request(input_ids=(1, 2, 3), sampling=sampling, n=2, seed=11, rid="r"))
    assert [one.token_ids for one in found] == [(4, 5), (6, 2)]
    assert found[0].log_probs == (-0.5, -0.5)
    assert found[0].spans == (Span(start=0, version=0),)
    (body,) = bodies
    assert body["input_ids"] == [[1, 2, 3]] * 2
    assert body["rid"] == ["r/0", "r/1"]
    assert [one["sampling_seed"] for one in body["sampling_params"]] == [11, 12]
    assert body["sampling_params"][0] == {
        "max_new_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "stop": ["x"],
        "no_stop_trim": True,
        "stop_token_ids": [7],
        "sampling_seed": 11,
    }


async def test_a_log_prob_that_is_no_number_arrives_as_nan() -> None:
    """JSON has none: servers write null."""

    async def generate(_: web.Request) -> web.Response:
        return web.json_response(answer([4, 5], output_token_logprobs=[[-0.25, 4, None], [None, 5, None]]))

    async with serving({"/generate": generate}) as client:
        (one,) = await client.generate(Request(input_ids=(1, 2, 3), sampling=Sampling(max_tokens=9)))
    assert one.log_probs[0] == -0.25
    assert math.isnan(one.log_probs[1])


async def test_no_more_requests_than_slots_are_under_way() -> None:
    now = most = 0

    async def generate(request: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return web.json_response([answer([(await request.json())["input_ids"][0]])])

    async with serving({"/generate": generate}, concurrency=3) as client:
        sampling = Sampling(max_tokens=1)
        answers = await together(
            client.generate(Request(input_ids=(i,), sampling=sampling)) for i in range(12)
        )
    assert [one.token_ids for (one,) in answers] == [(i,) for i in range(12)]
    assert most == 3


async def test_the_first_failure_ends_the_others() -> None:
    async def generate(request: web.Request) -> web.Response:
        first = (await request.json())["input_ids"][0]
        if first == 0:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        await asyncio.sleep(60.0)
        return web.json_response([answer([1])])

    async with serving({"/generate": generate}) as client:
        async with asyncio.timeout(30.0):
            with pytest.raises(EngineError, match=r"refused /generate with HTTP 400: too long"):
                await together(
                    client.generate(Request(input_ids=(i,), sampling=Sampling(max_tokens=1)))
                    for i in range(3)
                )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "no room"}}, "no room"),
        ({"object": "error", "message": "no room"}, "no room"),
        ({"detail": "no room"}, "no room"),
        ({"success": False, "message": "no room"}, "no room"),
        ({"error": "no room"}, "no room"),
        ({}, "no reason given"),
    ],
)
async def test_a_refusal_says_where_and_what(body: dict[str, Any], said: str) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.json_response(body, status=500)

    async with serving({"/pause_generation": refuse}) as client:
        with pytest.raises(EngineError, match=rf"refused /pause_generation with HTTP 500: {said}"):
            await client.pause("abort")


async def test_an_update_that_fails_with_status_200_is_an_error() -> None:
    async def fail(_: web.Request) -> web.Response:
        return web.json_response({"success": False, "message": "wrong shape"})

    async with serving({"/update_weights_from_disk": fail}) as client:
        with pytest.raises(EngineError, match="failed /update_weights_from_disk: wrong shape"):
            await client.update_from_disk("/x", 1)


async def test_silence_and_absence_are_told_apart() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(60.0)
        return web.Response()

    async with serving({"/health_generate": silent}, control_timeout_s=0.3) as client:
        with pytest.raises(EngineError, match=r"did not answer /health_generate within 0\.3 s"):
            await client.health()
    async with EngineClient(f"http://127.0.0.1:{free_port()}", None) as client:
        with pytest.raises(EngineError, match="cannot be reached for /health_generate"):
            await client.health()


async def test_a_flush_is_repeated_and_nothing_else() -> None:
    flushes = pauses = 0

    async def flush(_: web.Request) -> web.Response:
        nonlocal flushes
        flushes += 1
        return web.Response(status=200 if flushes == 3 else 400, text="Flush cache failed.")

    async def pause(_: web.Request) -> web.Response:
        nonlocal pauses
        pauses += 1
        return web.Response(status=400)

    async with serving({"/flush_cache": flush, "/pause_generation": pause}) as client:
        await client.flush_cache()
        with pytest.raises(EngineError):
            await client.pause("abort")
    assert (flushes, pauses) == (3, 1)


async def test_spans_and_versions() -> None:
    spans = [{"version": "default", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    versions = iter(["default", "12", "nightly"])

    async def generate(_: web.Request) -> web.Response:
        return web.json_response([answer([5, 6, 7], weight_versions=spans, weight_version="4")])

    async def info(_: web.Request) -> web.Response:
        return web.json_response({"weight_version": next(versions)})

    async with serving({"/generate": generate, "/model_info": info}) as client:
        (one,) = await client.generate(Request(input_ids=(1,), sampling=Sampling(max_tokens=3)))
        assert one.spans == (Span(start=0, version=0), Span(start=2, version=4))
        assert [await client.weight_version() for _ in range(2)] == [0, 12]
        with pytest.raises(EngineError, match="'nightly', no version that rlcore published"):
            await client.weight_version()


@pytest.mark.parametrize(("said", "shown"), [("Hello, <b>you</b>", "'Hello, <b>you</b>'"), ({"ok": 1}, "ok")])
async def test_a_server_of_another_kind_is_told(said: object, shown: str) -> None:
    """Such as a web page behind --engine-url or --teacher.url: it answers everything with 200."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text=said) if isinstance(said, str) else web.json_response(said)

    async with serving({"/server_info": hello, "/model_info": hello, "/generate": hello}) as client:
        expected = (
            f"at {client.url} answered %s with .*{shown}.*, expected a JSON object with '%s': it is no engine"
        )
        for ask, path, key in (
            (client.server_info, "/server_info", "version"),
            (client.model_info, "/model_info", "weight_version"),
            (lambda: client.tokenize("a"), "/server_info", "version"),
        ):
            with pytest.raises(EngineError, match=expected % (path, key)):
                await ask()


@pytest.mark.parametrize("field", [{"media": ("sha256:1",)}, {"policy": "french"}])
async def test_what_no_engine_takes_is_refused(field: dict[str, Any]) -> None:
    async with serving({}) as client:
        with pytest.raises(EngineError, match=f"takes no {next(iter(field))}"):
            await client.generate(Request(input_ids=(1,), sampling=Sampling(max_tokens=1), **field))
