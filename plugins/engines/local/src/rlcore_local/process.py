"""The server process: one thread that computes, and the event loop in the main thread."""

import asyncio
import json
import os
import signal
import threading
import traceback
from concurrent.futures import Future
from typing import Any, cast

from aiohttp import web

from rlcore import ConfigError, Tokenizer, classifier_of, torch_dtype, turn_ends
from rlcore_local import classify
from rlcore_local.app import Handler
from rlcore_local.loading import load_config, load_tokenizer
from rlcore_local.scheduler import Scheduler
from rlcore_local.sequences import Sequence
from rlcore_local.server import make_app
from rlcore_local.service import Service
from rlcore_local.settings import Settings
from rlcore_local.weights import Weights, stop_token_ids
from rlcore_machine import compute_threads, settle_heap
from rlcore_toolkit import KEEPALIVE_S, SilentConnections, shorten_http_log


def serve(settings: Settings, token: str) -> None:
    """Serve until SIGTERM or SIGINT, which end the process with code 0. `ModelError`: it cannot be served."""
    asyncio.run(_serve(settings, token))


async def _serve(settings: Settings, token: str) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # The compute thread may be deep in a product of matrices, and nothing is worth waiting for.
        loop.add_signal_handler(number, os._exit, 0)
    app = await _app(settings, token, loop)
    silent = SilentConnections()
    shorten_http_log()

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        silent.note(request.protocol)
        return await handler(request)

    app.middlewares.append(note)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, keepalive_timeout=KEEPALIVE_S)
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError(f"--host {settings.host} --port {settings.port}: {error.strerror}.") from error
    settle_heap()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await silent.watch(runner.server)


async def _app(settings: Settings, token: str, loop: asyncio.AbstractEventLoop) -> web.Application:
    """What the model is served by: a sequence classifier scores, any other generates."""
    if classifier_of(load_config(settings.model_path).to_dict()) is not None:
        return classify.make_app(await classify.start(settings), token)
    return make_app(await start(settings, loop), token)


async def start(settings: Settings, loop: asyncio.AbstractEventLoop) -> Service:
    """A service whose answers come in `loop`, and its compute thread.

    That thread loads it, because OpenMP keeps a pool for each thread that ever computed.
    """
    loaded: Future[Service] = Future()
    thread = threading.Thread(target=_compute, args=(settings, loop, loaded), daemon=True)
    thread.start()
    return await asyncio.wrap_future(loaded)


def _compute(settings: Settings, loop: asyncio.AbstractEventLoop, loaded: Future[Service]) -> None:
    """The life of the compute thread; an error in a step ends the process: no request waits in vain."""
    try:
        service = _load(settings, loop)
    except BaseException as error:
        loaded.set_exception(error)
        return
    loaded.set_result(service)
    try:
        service.scheduler.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _load(settings: Settings, loop: asyncio.AbstractEventLoop) -> Service:
    compute_threads(settings.threads)

    def deliver(answers: list[tuple[Sequence, dict[str, Any]]]) -> None:
        loop.call_soon_threadsafe(lambda: service.dispatch(answers))

    scheduler = Scheduler(settings.max_batch, deliver)
    dtype = torch_dtype(settings.dtype)
    weights = Weights(settings.model_path, dtype, settings.context_length, settings.device)
    scheduler.weights = weights
    tokenizer = load_tokenizer(settings.model_path)
    scheduler.tokenizer = tokenizer
    stop_ids = stop_token_ids(settings.model_path, weights.model.config)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        stop_ids |= {tokenizer.eos_token_id}
    if tokenizer is not None:
        stop_ids |= {end.token_id for end in turn_ends(cast(Tokenizer, tokenizer))}
    service = Service(
        settings, scheduler, tokenizer=tokenizer, context_length=weights.context_length, stop_ids=stop_ids
    )
    return service
