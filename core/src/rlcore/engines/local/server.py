"""The routes: SGLang's native HTTP protocol (0.5.23), as far as reinforcement learning uses it.

Every request but `/health` carries `Authorization: Bearer <token>`, or gets a 401. Refusals are 400 with
`{"error": {"message": ...}}`; updates answer `{"success": ..., "message": ...}`.

Of OpenAI's protocol there is `/v1/chat/completions` (`rlcore.engines.local.chat`). A sequence classifier has
routes of its own (`rlcore.engines.local.classify`).

Beyond SGLang:
- `/update_weights_from_shared_memory` {path, layout: [[name, dtype, shape, offset], ...], weight_version,
  flush_cache}: maps a file of `--weights-dir` (dtypes float32, bfloat16, float16) and copies it.
- `/update_weights_from_delta` {path, weight_version, flush_cache}: applies a file of `--weights-dir` with the
  changes since the version that it has (`rlcore.engines.delta`); refused, with nothing changed, where the
  file is damaged or made for other weights.
- The header `X-Rlcore-Session: NAME/N` on `/generate`: none of the N requests of that name begins before all
  have come, then they begin in the order of their rid; so equal sessions on an idle server give bit-equal
  answers. A request (of one prompt, or a batch) that is refused counts as come. The same is had by
  pause_generation, posting all, and continue_generation.
- A batch with `Accept: application/x-ndjson` is answered by a line for each prompt, `{"index", "answers"}`,
  as soon as its `n` samples have ended.
- `sampling_seed` fixes a sample by (seed, index among `n`, prompt), whatever else is in the batch.

`/update_weights_from_distributed` takes flattened buckets (`load_format` "flattened_bucket") alone.

An update is done between two steps. Running samples go on: with `flush_cache` (the default) what they had
computed is computed anew with the new weights, without it they keep their old keys and values;
`weight_versions` tells which tokens came from which weights. Between /begin_weight_update and
/end_weight_update no step is made.
"""

import asyncio

import orjson
from aiohttp import web

from rlcore.engines.local.app import CHAT, CLASSIFY, GENERATE, guarded, read_body, refuse
from rlcore.engines.local.chat import Chat
from rlcore.engines.local.controls import Controls
from rlcore.engines.local.requests import Asks, RequestError, parse_generate
from rlcore.engines.local.sequences import Sequence
from rlcore.engines.local.service import Answer, Service

SESSION_HEADER = "X-Rlcore-Session"
LINES = "application/x-ndjson"


def make_app(service: Service, token: str) -> web.Application:
    """The application; `token` is what clients must bear."""
    app = guarded(token, Controls(service).routes())
    app.router.add_post(GENERATE, Generate(service).handle)
    app.router.add_post(CHAT, Chat(service).handle)
    refuse(app, CLASSIFY, "The model gives tokens, not scores: /classify needs a sequence classifier.")
    return app


class Generate:
    """`/generate`."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Check, generate, answer."""
        session = parse_session(request.headers.get(SESSION_HEADER))
        try:
            asks = parse_generate(await read_body(request))
            sequences = self.service.sequences(asks)
        except RequestError:
            self.service.begin([], session)
            raise
        self.service.begin(sequences, session)
        finished = False
        try:
            if asks.stream:
                response = await self._stream(request, sequences, asks.is_single)
            elif LINES in request.headers.get("Accept", ""):
                response = await self._lines(request, sequences, asks)
            else:
                answers = await self._last(sequences)
                answer = orjson.dumps(answers[0] if asks.is_single else answers)
                response = web.Response(body=answer, content_type="application/json")
            finished = True
            return response
        finally:
            self.service.end(sequences, finished=finished)

    async def _lines(self, request: web.Request, sequences: list[Sequence], asks: Asks) -> web.StreamResponse:
        """A line for each prompt: its place, and the answers to its samples, which are equally many."""
        response = web.StreamResponse(headers={"Content-Type": LINES})
        await response.prepare(request)
        size = asks.asks[0].params.n
        prompts = [sequences[start : start + size] for start in range(0, len(sequences), size)]
        pending = {asyncio.ensure_future(self._last(prompt)): index for index, prompt in enumerate(prompts)}
        try:
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                lines = sorted((pending.pop(task), task.result()) for task in done)
                await response.write(
                    b"".join(
                        orjson.dumps({"index": index, "answers": found}) + b"\n" for index, found in lines
                    )
                )
        finally:
            for task in pending:
                task.cancel()
        await response.write_eof()
        return response

    async def _last(self, sequences: list[Sequence]) -> list[Answer]:
        """The answers to samples that are not streamed."""
        return [await self.service.next_answer(one) for one in sequences]

    async def _stream(
        self, request: web.Request, sequences: list[Sequence], is_single: bool
    ) -> web.StreamResponse:
        """Server-sent events: each holds all that a sample has so far, and its `index` in a batch."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for index, answer in self.service.merged(sequences):
            event: Answer = answer if is_single else {**answer, "index": index}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def parse_session(header: str | None) -> tuple[str, int] | None:
    """`NAME/N` as (name, number of requests)."""
    if header is None:
        return None
    name, _, count = header.rpartition("/")
    if not name or not count.isdecimal() or int(count) < 1:
        raise RequestError(f"{SESSION_HEADER}: {header!r} is not of the form NAME/N")
    return name, int(count)
