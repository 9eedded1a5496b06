"""Connections that bring no request are closed, and no others."""

import asyncio

import aiohttp
from aiohttp import web

from rlcore_toolkit import SilentConnections

LIMIT_S = 0.8


async def test_what_is_silent_is_closed() -> None:
    """Also what begins a request and never ends its head; a client that asked, and is idle, stays."""
    silent = SilentConnections(LIMIT_S)
    app = web.Application()

    async def say(request: web.Request) -> web.Response:
        silent.note(request.protocol)
        return web.Response(text=str(id(request.transport)))

    app.router.add_get("/", say)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    watch = asyncio.create_task(silent.watch(runner.server))
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _, writer in idle[:2]:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    async with aiohttp.ClientSession() as client, asyncio.timeout(20):

        async def asked() -> str:
            async with client.get(f"http://127.0.0.1:{port}") as response:
                return await response.text()

        transport = await asked()
        slow, *others = idle
        await asyncio.sleep(LIMIT_S * 0.6)
        slow[1].write(b"\r\n")
        assert (await slow[0].readuntil(b"\r\n")).startswith(b"HTTP/1.1 200"), "it took its time"
        for reader, writer in others:
            assert await reader.read() == b""
            writer.close()
        slow[1].close()
        assert await asked() == transport, "the same connection"
    watch.cancel()
    await runner.cleanup()
