"""What is no HTTP, or no body of its Content-Encoding: refused, and logged in a line, up to a bound."""

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web

from rlcore_local.app import guarded, read_body
from rlcore_toolkit import http_log, shorten_http_log

GZIP = b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nabc"
TOKEN = b"Authorization: Bearer token\r\n"


async def answer(port: int, request: bytes) -> bytes:
    """The status line of the answer to `request`, byte for byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    line = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    return line


async def test_faults_of_clients_cannot_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response(await read_body(request))

    monkeypatch.setattr(http_log, "MOST_LINES", 5)
    shorten_http_log()
    runner = web.AppRunner(guarded("token", {"/x": echo}), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    begin, found = b"POST /x HTTP/1.1\r\nHost: a\r\n", []
    with caplog.at_level(logging.ERROR, "aiohttp.server"):
        for request in (TOKEN + GZIP, TOKEN + CHUNKED, *[GZIP] * 9):
            found.append((await answer(port, begin + request)).split()[1])
    await runner.cleanup()
    assert found == [b"400", b"400", *[b"401"] * 9]
    records: list[Any] = caplog.records
    assert [record.exc_info for record in records] == [None] * 5
    assert "Further ones are not logged" in records[-1].getMessage()
