"""`SessionServer`: one HTTP server for all sessions, told apart by their tokens."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import orjson
from aiohttp import web

from rlcore import ConfigError, GenerationContext
from rlcore_machine import LOOPBACK, listen, settle_heap, switch_threads_often
from rlcore_session import anthropic_api, openai_api
from rlcore_session.chats import TOO_LONG, ApiError, Ask
from rlcore_session.session import LONG_BYTES, Session
from rlcore_toolkit import KEEPALIVE_S, SilentConnections, call_in_thread, shorten_http_log

LARGEST_BODY = 64 * 2**20
BODY_BYTES, BODY_BYTES_PER_TOKEN = 2**20, 64
"""The most bytes of a request: so many, and so many more for each token of a prompt and its response."""
BODY_LIMIT_S = 60.0
"""For a body that was announced to arrive."""
TOKENS_PER_MESSAGE = 4
"""A chat template writes at least so many: who speaks, and where it begins and ends."""
SHUTDOWN_S = 5.0
"""Seconds that requests under way have to end."""
MODEL = "policy"
ErrorBody = Callable[[ApiError], dict[str, Any]]
Handler = Callable[["Session", GenerationContext, web.Request], Awaitable[web.StreamResponse]]


class SessionServer:
    """Serves the sessions that are `open`; any other token is refused. It belongs to one event loop.

    `public_url`: where agents reach it, if not at its own address. Raises `ConfigError` where it could not
    listen.
    """

    def __init__(self, address: str = LOOPBACK, port: int = 0, public_url: str = "") -> None:
        try:
            listen(address, port).close()
        except OSError as error:
            raise ConfigError(
                f"--generator.address {address}, --generator.port {port}: nothing can listen there: "
                f"{error.strerror}."
            ) from error
        self._address, self._port = address, port
        self._sessions: dict[str, tuple[Session, GenerationContext]] = {}
        self._runner: web.AppRunner | None = None
        self._silent = SilentConnections()
        self._watch: asyncio.Task[None] | None = None
        self.url = public_url.rstrip("/")
        """Where agents find it, by default `http://127.0.0.1:PORT`."""

    async def start(self) -> None:
        """Listens.

        What this process holds by now, all modules of the trainer's among it, is taken out of the garbage
        collector's sight: looking through it would stop every session for a tenth of a second at a time.
        """
        settle_heap()
        switch_threads_often()  # threads tokenise beside it
        shorten_http_log()
        app = web.Application(client_max_size=LARGEST_BODY)
        for path, handler, tell in (
            ("/v1/chat/completions", _chat, openai_api.error_body),
            ("/v1/messages", _messages, anthropic_api.error_body),
            ("/v1/messages/count_tokens", _count, anthropic_api.error_body),
            ("/v1/report", _report, openai_api.error_body),
        ):
            app.router.add_post(path, self._route(handler, tell))
        app.router.add_get("/v1/models", self._route(_models, openai_api.error_body))
        app.router.add_get("/v1/prompt", self._route(_prompt, openai_api.error_body))
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=SHUTDOWN_S,
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listen(self._address, self._port)).start()
        host, port = self._runner.addresses[0][:2]
        self.url = self.url or f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._watch = asyncio.create_task(self._silent.watch(self._runner.server))

    async def close(self) -> None:
        """Ends every request. May be called again."""
        if self._watch is not None:
            self._watch.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @contextmanager
    def open(self, session: Session, ctx: GenerationContext) -> Iterator[str]:
        """The session's token; it is good within."""
        token = f"sk-{secrets.token_urlsafe(24)}"
        self._sessions[token] = session, ctx
        try:
            yield token
        finally:
            del self._sessions[token]

    def _route(
        self, handler: Handler, tell: ErrorBody
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            self._silent.note(request.protocol)
            try:
                session, ctx = self._of(request)
                return await handler(session, ctx, request)
            except RecursionError:
                refusal = ApiError(400, "The body is nested too deeply.")
            except ApiError as error:
                refusal = error
            return web.json_response(tell(refusal), status=refusal.status, headers=NO_RETRY)

        return answer

    def _of(self, request: web.Request) -> tuple[Session, GenerationContext]:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        pair = self._sessions.get(request.headers.get("x-api-key") or bearer)
        if pair is None:
            raise ApiError(401, "The API key is not that of a session that is under way.")
        return pair


NO_RETRY = {"x-should-retry": "false"}
"""Both SDKs heed it: what was refused would be refused again."""


async def _body(ctx: GenerationContext, request: web.Request) -> tuple[dict[str, Any], int]:
    """The JSON object of a request, and its size in bytes."""
    most = min(LARGEST_BODY, BODY_BYTES + BODY_BYTES_PER_TOKEN * ctx.context_length)
    too_long = ApiError(
        400, f"The body has more than {most:,} bytes, which are more tokens than fit.", code=TOO_LONG
    )
    if (request.content_length or 0) > most:
        raise too_long
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            content = await request.read()
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {BODY_LIMIT_S:g} s.") from None
    except web.RequestPayloadError as error:
        raise ApiError(400, "The body is not what its Content-Encoding says.") from error
    if len(content) > most:
        raise too_long
    try:
        body = orjson.loads(content)
    except ValueError as error:
        raise ApiError(400, f"The body is no JSON: {error}.") from error
    if not isinstance(body, dict):
        raise ApiError(400, "The body is no JSON object.")
    return body, len(content)


async def _ask(
    read: Callable[[Mapping[str, Any]], Ask], session: Session, ctx: GenerationContext, request: web.Request
) -> Ask:
    try:
        body, size = await _body(ctx, request)
        messages = body.get("messages")
        if isinstance(messages, list) and len(messages) * TOKENS_PER_MESSAGE > ctx.context_length:
            raise ApiError(400, f"{len(messages):,} messages are more tokens than fit.", code=TOO_LONG)
    except ApiError as error:
        session.refused_for_length |= error.code == TOO_LONG
        raise
    ask = read(body) if size <= LONG_BYTES else await call_in_thread(lambda: read(body))
    return replace(ask, size=size)


async def _chat(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    ask = await _ask(openai_api.read_ask, session, ctx, request)
    turns = await session.respond(ask)

    def decode(ids: list[int]) -> str:
        return ctx.tokenizer.decode(ids, skip_special_tokens=False)

    if ask.stream:
        return await _stream(request, openai_api.events(ask, turns, decode))
    return web.json_response(openai_api.answer(ask, turns, decode))


async def _messages(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    ask = await _ask(anthropic_api.read_ask, session, ctx, request)
    (turn,) = await session.respond(ask)
    if ask.stream:
        return await _stream(request, anthropic_api.events(ask, turn))
    return web.json_response(anthropic_api.answer(ask, turn))


async def _count(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    ask = await _ask(anthropic_api.read_ask, session, ctx, request)
    return web.json_response({"input_tokens": await session.count(ask)})


async def _models(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    return web.json_response(openai_api.models(MODEL))


async def _prompt(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    return web.json_response(session.task)


async def _report(session: Session, ctx: GenerationContext, request: web.Request) -> web.StreamResponse:
    body, _ = await _body(ctx, request)
    unknown = sorted(set(body) - {"reward", "parts", "answer"})
    if unknown:
        raise ApiError(400, f"{unknown[0]}: not known; a report has reward, parts and answer.")
    session.report(**body)
    return web.json_response({})


async def _stream(request: web.Request, lines: Iterator[str]) -> web.StreamResponse:
    """Server-sent events; they come once the turn is sampled."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write("".join(lines).encode())
    await response.write_eof()
    return response
