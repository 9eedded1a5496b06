"""What SGLang does that rlcore's protocol does not ask of a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlcore import Completion, EngineClient, EngineError, Request, Sampling, Span
from rlcore_sglang.client import SglangClient

PATHS = ("/generate", "/begin_weight_update", "/v1/loads")
META = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}, "weight_version": "4"}
"""What a request is answered that had not begun: no count of the prompt, no versions with their starts."""


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[EngineClient, list[Any]]]:
    """A client of a server with `settings`, and the path (and body) of each request."""
    requests: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/server_info":
            requests.append(request.path)
            return web.json_response({"version": "0.5.23", **settings})
        if request.path == "/openapi.json":
            requests.append(request.path)
            return web.json_response({"paths": {path: {} for path in PATHS}})
        requests.append(body := await request.json())
        one = {"text": "", "output_ids": [], "meta_info": META}
        return web.json_response([one, one] if isinstance(body["rid"], list) else one)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, SglangClient(str(server.make_url("")), "token") as client:
        yield client, requests


async def generate(client: EngineClient, n: int, min_p: float = 0.0) -> list[Completion]:
    sampling = Sampling(max_tokens=9, min_p=min_p)
    return await client.generate(Request(input_ids=(1, 2, 3), sampling=sampling, n=n, seed=11, rid="r"))


@pytest.mark.parametrize("deterministic", [True, False])
async def test_its_settings_and_paths_tell_what_it_can(deterministic: bool) -> None:
    async with serving(tp_size=2, enable_deterministic_inference=deterministic) as (client, requests):
        can = await client.capabilities()
        await client.capabilities()
    assert requests == ["/server_info", "/openapi.json"]
    assert can.tensor_ranks == 2
    assert {name for name, value in vars(can).items() if value is True} == {
        "weight_session",
        "loads",
        "seeds" if deterministic else "min_p",
    }


@pytest.mark.parametrize(("n", "rid"), [(1, "r/0/"), (2, ["r/0/", "r/1/"])])
async def test_an_id_ends_in_a_slash_and_an_abort_before_the_first_token_says_little(
    n: int, rid: str | list[str]
) -> None:
    async with serving() as (client, requests):
        completions = await generate(client, n)
    assert requests[-1]["rid"] == rid
    assert len(completions) == n
    for one in completions:
        assert (one.finish_reason, one.token_ids, one.prompt_tokens) == ("abort", (), 3)
        assert one.spans == (Span(start=0, version=4),)


async def test_min_p_is_refused_under_deterministic_inference() -> None:
    async with serving(enable_deterministic_inference=True) as (client, requests):
        with pytest.raises(EngineError, match="takes no min-p under deterministic inference"):
            await generate(client, 1, min_p=0.1)
    assert requests == ["/server_info", "/openapi.json"]


async def test_each_request_names_its_adapter() -> None:
    async with serving(enable_lora=True) as (client, requests):
        await generate(client, 2)
        with suppress(EngineError):  # this server does not score
            await client.score((1, 2))
        body = Request(input_ids=(1,), sampling=Sampling(max_tokens=1), rid="r", policy="opponent")
        await client.generate(body)
    assert [body["lora_path"] for body in requests[2:]] == ["policy", "policy", "opponent"]
    async with serving() as (client, requests):
        with pytest.raises(
            EngineError, match=r"adapter 'opponent', but .* --sglang\.lora-paths opponent=DIR"
        ):
            await client.generate(body)
        await generate(client, 1)
    assert "lora_path" not in requests[-1]
