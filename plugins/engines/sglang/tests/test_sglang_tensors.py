"""Weights by value: what the server is asked."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from rlcore import Bucket, Piece, WeightsLocation
from rlcore_sglang.client import SglangClient
from rlcore_sglang.publish import TensorPublisher

BEGIN, UPDATE, END = "/begin_weight_update", "/update_weights_from_tensor", "/end_weight_update"
BUCKET = Bucket(names=("a",), dtypes=("float32",), shapes=((1,),))


async def test_an_update_has_a_session_and_a_payload_for_each_rank(tmp_path: Path) -> None:
    calls: list[tuple[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/server_info":
            return web.json_response({"version": "0.5.23", "tp_size": 2})
        if request.path == "/openapi.json":
            return web.json_response({"paths": {BEGIN: {}}})
        calls.append((request.path, await request.json()))
        return web.json_response({"success": True, "message": ""})

    async def pieces() -> AsyncIterator[Piece]:
        yield Piece(bucket=BUCKET, content=b"first")
        yield Piece(bucket=BUCKET, content=b"last", is_last=True)

    app = web.Application()
    app.router.add_route("*", "/{path}", answer)
    publisher = TensorPublisher(root=tmp_path, dtype="fp32")
    location = WeightsLocation(directory=str(tmp_path), version=3, checksums={}, pieces=pieces())
    async with TestServer(app) as server, SglangClient(str(server.make_url("")), "token") as client:
        await publisher._send(client, location)
    assert [path for path, _ in calls] == [BEGIN, UPDATE, UPDATE, END]
    first, last = calls[1][1], calls[2][1]
    assert [base64.b64decode(one) for one in first["serialized_named_tensors"]] == [b"first", b"first"]
    assert "weight_version" not in first
    assert (last["weight_version"], last["flush_cache"]) == ("3", False)
