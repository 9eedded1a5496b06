"""MCP servers: https://modelcontextprotocol.io, by the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shlex
from collections.abc import Mapping
from typing import Any

from rlcore import Json, MissingPackageError, PluginError
from rlcore_tools.toolbox import BadCallError, schema_of


class ServerTool:
    """One tool of a server."""

    def __init__(self, server: Server, tool: Any) -> None:
        self.name: str = tool.name
        self.schema = schema_of(tool.name, tool.description or "", tool.input_schema)
        self._server = server

    async def call(self, arguments: Mapping[str, Json]) -> str:
        """The text of the result; a result that is an error raises."""
        return await self._server.call(self.name, dict(arguments))


class Connection:
    """One life of a server. It lives in a task of its own, since whoever opens a connection must close it."""

    def __init__(self, where: str, limit_s: float) -> None:
        """`limit_s`: for the server to start, and to end."""
        self._where = where
        self._limit_s = limit_s
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked of it any more."""
        return self._is_over.is_set()

    async def client(self) -> Any:
        """The SDK's client, once the server is up. Raises what kept it from starting."""
        return await asyncio.shield(self._ready)  # others wait for it too

    def end(self) -> None:
        """Ask no more of it."""
        self._is_over.set()

    async def close(self) -> None:
        """End it, and the process that was started."""
        self.end()
        await asyncio.wait({self._task}, timeout=self._limit_s)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=self._limit_s)
        if self._task.done() and not self._task.cancelled():
            self._task.exception()  # seen: it is over, however it ended

    async def _hold(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self._limit_s):
                    client = await stack.enter_async_context(self._open())
                self._ready.set_result(client)
                await self._is_over.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            fatal = RuntimeError("it was closed before it was up")
            self._ready.set_exception(error if isinstance(error, Exception) else fatal)
            self._ready.exception()  # seen, also where nobody waits any more
        finally:
            self.end()

    def _open(self) -> Any:
        from mcp import Client, StdioServerParameters, stdio_client

        if "://" in self._where:
            return Client(self._where)
        program, *arguments = shlex.split(self._where)
        return Client(stdio_client(StdioServerParameters(command=program, args=arguments)))


class Server:
    """A server behind a URL (streamable HTTP), or a process that is started (stdio).

    One that went away is started anew for the next call.
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
        self._connection: Connection | None = None

    async def tools(self) -> list[ServerTool]:
        """All that it offers. Raises `PluginError` where it does not start."""
        client = await self._client(await self._connected())
        try:
            async with asyncio.timeout(self._limit):
                listed = await client.list_tools()
        except Exception as error:
            raise self._fault("told no tools", error) from error
        return [ServerTool(self, tool) for tool in listed.tools]

    async def call(self, name: str, arguments: dict[str, Json]) -> str:
        """The text of the result. Raises `BadCallError` for what the server calls an error."""
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        connection = await self._connected()
        client = await self._client(connection)
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                connection.end()  # the next call starts it anew
            raise
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
        if result.is_error:
            raise BadCallError(text or f"{name} failed")
        return text

    async def close(self) -> None:
        """End the connection, and a process that was started."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connected(self) -> Connection:
        async with self._lock:
            if self._connection is not None and self._connection.is_over:
                await self.close()
            if self._connection is None:
                self._connection = Connection(self._where, self._limit)
            return self._connection

    async def _client(self, connection: Connection) -> Any:
        try:
            return await connection.client()
        except Exception as error:
            raise self._fault("did not start", error) from error

    def _fault(self, what: str, error: Exception) -> PluginError:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        said = f"{type(error).__name__}: {error}".rstrip(": .")
        return PluginError(f"--generator.mcp {self._where}: the server {what} ({said}).")
