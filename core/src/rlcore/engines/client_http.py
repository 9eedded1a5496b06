"""One engine server's HTTP: a token, time limits, and errors with what was asked and answered."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from functools import partial
from typing import Any

import aiohttp
import orjson

from rlcore.api.errors import EngineError
from rlcore.engines.client_answers import in_turn

MESSAGE_CHARS = 600
KEPT_S = 2.0
"""Seconds to keep an idle connection. Uvicorn closes it after 5 s."""
JSON = {"Content-Type": "application/json"}
LINES = {"Accept": "application/x-ndjson"}
MAX_EVENT_BYTES = 1 << 26  # an event of a stream is one line that holds all tokens so far


class RefusedError(EngineError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, int]]:
        return type(self), (str(self), self.status)


class UnreachableError(EngineError):
    """The server did not answer, or not in time."""


def is_fault(error: EngineError) -> bool:
    """Whether the server may be gone. Otherwise it answered, and the request was wrong."""
    # A 5xx may be the fault of one request, or the end of the scheduler.
    return isinstance(error, UnreachableError) or (isinstance(error, RefusedError) and error.status >= 500)


class Http:
    """Requests to one server. Belongs to one event loop; `close` it there."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Closes the connections; a later request is an UnreachableError. May be called again."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """The JSON (or text) that GET `path` answers."""
        return _parsed(await self._answer("GET", path, None, timeout_s))

    async def delete(self, path: str, *, timeout_s: float) -> Any:
        """The JSON (or text) that DELETE `path` answers. Never repeated."""
        return _parsed(await self._answer("DELETE", path, None, timeout_s))

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Any:
        """The JSON (or text) that POST `path` answers. Never repeated."""
        return _parsed(await self._answer("POST", path, body, timeout_s))

    async def post_bytes(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Like `post`, but returns the answer's bytes."""
        return await self._answer("POST", path, body, timeout_s, headers)

    async def lines(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float
    ) -> AsyncGenerator[Any, None]:
        """The JSON of each line that POST `path` answers, as they come. A line may be of any length."""
        pieces: list[bytes] = []
        async with self._response("POST", path, body, timeout_s, LINES) as response:
            async for chunk in response.content.iter_any():
                first, *others = chunk.split(b"\n")
                pieces.append(first)
                for other in others:
                    yield orjson.loads(b"".join(pieces))
                    pieces = [other]

    async def events(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> AsyncIterator[Any]:
        """The JSON of each server-sent event of POST `path`, up to `[DONE]`."""
        async with self._response("POST", path, body, timeout_s) as response:
            async for line in response.content:
                data = line.decode().strip().removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                if data:
                    event = orjson.loads(data)
                    if "error" in event:
                        reason = _error_text(event)
                        raise EngineError(f"The engine at {self.url} failed {path}: {reason}.")
                    yield event

    async def _answer(self, *asked: Any) -> bytes:
        """The body of the `_response` to what is asked."""
        async with self._response(*asked) as response:
            pieces = [piece async for piece in response.content.iter_any()]
        # Many long answers may end in one round of the event loop: each is joined in a round of its own.
        return await in_turn(partial(b"".join, pieces), size=sum(map(len, pieces)))

    @contextlib.asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, to be read within. RefusedError, or UnreachableError if it does not come whole."""
        if self._is_closed:
            raise UnreachableError(f"The connection to the engine {self.url} is closed: {path} is not sent.")
        # Not in `__init__`: a session belongs to the event loop in which it is made.
        if self._session is None:
            # A kept connection that the server has just closed looks like a failed POST, which may not be
            # repeated: this side gives it up first.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
            # No limit of connections, since `EngineClient` counts its requests itself.
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, read_bufsize=MAX_EVENT_BYTES
            )
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        data = None if body is None else orjson.dumps(body)
        headers = {**JSON, **(headers or {})} if data else headers
        request = self._session.request(method, self.url + path, data=data, timeout=timeout, headers=headers)
        try:
            async with request as response:
                if response.status >= 400:
                    reason = _error_text(_parsed(await response.read()))
                    message = f"The engine at {self.url} refused {path} with HTTP {response.status}: {reason}"
                    raise RefusedError(message, response.status)
                yield response
        except TimeoutError as error:
            raise UnreachableError(
                f"The engine at {self.url} did not answer {path} within {timeout_s:g} s."
            ) from error
        except aiohttp.ClientError as error:
            raise UnreachableError(
                f"The engine at {self.url} cannot be reached for {path}: {error}."
            ) from error


def _parsed(answer: bytes) -> Any:
    try:
        return orjson.loads(answer)
    except ValueError:
        return answer.decode(errors="replace").strip()


def _error_text(answer: Any) -> str:
    """The server's own words, wherever it put them."""
    while isinstance(answer, dict):
        messages = [answer[key] for key in ("error", "message", "detail") if answer.get(key)]
        if not messages:
            break
        answer = next((item for item in messages if isinstance(item, dict)), messages[-1])
    return str(answer)[:MESSAGE_CHARS] if answer else "no reason given"
