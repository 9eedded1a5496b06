"""sglang-router between a server for prefill and one for decode, which say what they are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from rlcore import Capabilities, EngineClient, Request, Sampling
from rlcore.engines.router import Listing
from rlcore_toolkit.sglang_router import SglangRouter

TOKEN = "secret"
LIMIT_S = 60.0
CAN = Capabilities(
    version="0.5.23",
    weight_session=True,
    seeds=False,
    seeds_siblings=False,
    min_p=True,
    tensor_checksums=False,
)
INFO = {"version": "0.5.23", "model_path": "m", "tokenizer_path": "m", "tp_size": 1, "dp_size": 1}


class Server:
    """Answers as SGLang does, and keeps the requests for tokens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path != "/generate":
            return web.json_response({**INFO, "is_generation": True, "model_type": "qwen3"})
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        self.asked.append(json.loads(await request.text()))
        meta = {
            "finish_reason": {"type": "length"},
            "output_token_logprobs": [[-0.5, 7, None]],
            "weight_versions": [{"version": "3", "start": 0}],
            "prompt_tokens": 2,
        }
        return web.json_response({"text": self.name, "output_ids": [7], "meta_info": meta})

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Server]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = site.name
        try:
            yield self
        finally:
            await runner.cleanup()


async def test_a_request_goes_to_one_of_each(tmp_path: Path) -> None:
    router = SglangRouter("consistent_hashing", token=TOKEN, log_path=tmp_path / "log", divided=True)
    prefill, decode = Server("prefill"), Server("decode")
    async with asyncio.timeout(LIMIT_S), prefill.served(), decode.served():
        try:
            await router.start()
            await Listing(router, {"worker_type": "prefill", "bootstrap_port": 8998}).add(prefill.url)
            await Listing(router, {"worker_type": "decode"}).add(decode.url)
            async with EngineClient(router.url, TOKEN, capabilities=CAN, headers=router.headers) as client:
                (answer,) = await client.generate(
                    Request(input_ids=(4, 5), sampling=Sampling(max_tokens=1), rid="1.0")
                )
        finally:
            await router.stop()
    assert answer.text == "decode"
    assert (*answer.token_ids, *answer.log_probs) == (7, -0.5)
    (first,), (second,) = prefill.asked, decode.asked
    assert first["input_ids"] == second["input_ids"] == [4, 5]
    assert first["bootstrap_port"] == second["bootstrap_port"] == 8998
    assert first["bootstrap_room"] == second["bootstrap_room"]
