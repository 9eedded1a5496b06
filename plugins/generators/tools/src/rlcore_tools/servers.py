"""MCP servers: https://modelcontextprotocol.io, by the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shlex
from collections.abc import Mapping
from typing import Any

from rlcore.errors import MissingPackageError, PluginError
from rlcore.types import Json
from rlcore_tools.toolbox import BadCallError


class ServerTool:
    """One tool of a server."""

    def __init__(self, server: Server, tool: Any) -> None:
        self.name: str = tool.name
        self.schema: Mapping[str, Json] = {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.input_schema,
            },
        }
        self._server = server

    async def call(self, arguments: Mapping[str, Json]) -> str:
        """The text of the result; a result that is an error raises."""
        return await self._server.call(self.name, dict(arguments))


class Server:
    """A server behind a URL (streamable HTTP), or a process that is started (stdio).

    The connection lives in a task of its own, since whoever opens one must close it; a server that went away
    is started anew for the next call.
    """

    def __init__(self, where: str, start_timeout: float) -> None:
        """Raises `MissingPackageError` where the SDK is not installed."""
        if importlib.util.find_spec("mcp") is None:
            raise MissingPackageError(
                f'--generator.mcp {where}: the MCP SDK is not installed; pip install "mcp>=2.0".'
            )
        self._where = where
        self._limit = start_timeout
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self._stop = asyncio.Event()

    async def tools(self) -> list[ServerTool]:
        """All that it offers. Raises `PluginError` where it does not start."""
        client = await self._connected()
        try:
            found = await asyncio.wait_for(client.list_tools(), self._limit)
        except Exception as error:
            raise self._fault("told no tools", error) from error
        return [ServerTool(self, tool) for tool in found.tools]

    async def call(self, name: str, arguments: dict[str, Json]) -> str:
        """The text of the result. Raises `BadCallError` for what the server calls an error."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = await self._connected()
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._stop.set()  # the next call starts it anew
            raise
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
        if result.is_error:
            raise BadCallError(text or f"{name} failed")
        return text

    async def close(self) -> None:
        """End the connection, and a process that was started."""
        if self._task is not None:
            self._stop.set()
            await self._ended(self._task)
            self._task = None

    async def _connected(self) -> Any:
        async with self._lock:
            if self._task is not None and self._stop.is_set():
                await self._ended(self._task)
                self._task = None
            if self._task is None or self._task.done():
                self._stop.clear()
                ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._hold(ready))
                try:
                    self._client = await asyncio.wait_for(ready, self._limit)
                except Exception as error:
                    self._task.cancel()
                    raise self._fault("did not start", error) from error
            return self._client

    async def _hold(self, ready: asyncio.Future[Any]) -> None:
        from mcp import Client, StdioServerParameters, stdio_client

        transport: Any = self._where
        if "://" not in self._where:
            program, *arguments = shlex.split(self._where)
            transport = stdio_client(StdioServerParameters(command=program, args=arguments))
        try:
            async with Client(transport) as client:
                ready.set_result(client)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _ended(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task}, timeout=self._limit)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it is over, however it ended
            await task

    def _fault(self, what: str, error: Exception) -> PluginError:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        said = f"{type(error).__name__}: {error}".rstrip(": .")
        return PluginError(f"--generator.mcp {self._where}: the server {what} ({said}).")
