"""What the servers of all models share: a token, refusals, bodies, and the paths that tell of them."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import BaseModel, ValidationError

from rlcore_local.requests import RequestError, explain

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
B = TypeVar("B", bound=BaseModel)

HEALTH = "/health"
"""Open as SGLang's is, since routers ask it without a token; it tells no more than that the process lives."""
CLASSIFY, CHAT = "/classify", "/v1/chat/completions"
MAX_BODY_BYTES = 1 << 30
BODY_LIMIT_S = 60.0
"""For a body that was announced to arrive."""


ABILITIES = ("seeds", "seeds_siblings", "min_p", "tensor_checksums", "sessions", "packed")
"""What rlcore's client may ask beyond SGLang's protocol (`rlcore.Capabilities`)."""


def information(health: Handler, server: Handler, model: Handler) -> dict[str, Handler]:
    """The paths that every server answers.

    `health`: whether the model answers. `server`: what is served, and what this server can do. `model`: what
    is served.
    """
    info = {"server_info": server, "model_info": model}
    return {
        HEALTH: _health,
        "/health_generate": health,
        # get_…: the names that SGLang had before.
        **{f"/{prefix}{name}": handler for prefix in ("", "get_") for name, handler in info.items()},
    }


async def _health(_: web.Request) -> web.Response:
    """Whether the process answers."""
    return web.Response()


def guarded(token: str, routes: Mapping[str, Handler]) -> web.Application:
    """An application with `routes`, by GET and POST. `token`: what clients must bear.

    A `RequestError` is a 400.
    """
    app = web.Application(middlewares=[_guard(token), _refusals], client_max_size=MAX_BODY_BYTES)
    for path, handler in routes.items():
        # SGLang takes either for most of these paths.
        for method in ("GET", "POST"):
            app.router.add_route(method, path, handler)
    return app


def refuse(app: web.Application, path: str, reason: str) -> None:
    """Answer every request for `path` by `reason`."""

    async def handle(_: web.Request) -> web.StreamResponse:
        raise RequestError(reason)

    app.router.add_post(path, handle)


async def read_body(request: web.Request) -> Any:
    """The JSON of a request; an empty body is an empty object."""
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            text = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"The body did not arrive within {BODY_LIMIT_S:g} s.") from None
    except web.RequestPayloadError as error:
        raise RequestError("The body is not what its Content-Encoding says.") from error
    try:
        return orjson.loads(text) if text else {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}") from error


async def parse(request: web.Request, kind: type[B]) -> B:
    """The body of a request, checked."""
    try:
        return kind.model_validate(await read_body(request))
    except ValidationError as error:
        raise RequestError(explain(error)) from error


def _guard(token: str) -> Middleware:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        # In constant time, so that an answer's delay tells nothing of the token.
        if request.path != HEALTH and not hmac.compare_digest(given, expected):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return guard


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response({"error": {"message": str(error)}}, status=400)
