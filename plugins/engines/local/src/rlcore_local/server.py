"""The routes: SGLang's native HTTP protocol (0.5.23), as far as reinforcement learning uses it.

Every request but `/health` carries `Authorization: Bearer <token>`, or gets a 401. Refusals are 400 with
`{"error": {"message": ...}}`; updates answer `{"success": ..., "message": ...}`.

Of OpenAI's protocol there is `/v1/chat/completions` (`rlcore_local.chat`). A sequence classifier has
routes of its own (`rlcore_local.classify`).

Beyond SGLang:
- `/update_weights_from_shared_memory` {path, layout: [[name, dtype, shape, offset], ...], weight_version,
  flush_cache}: maps a file of `--weights-dir` and copies it; dtypes float32, bfloat16, float16, and
  float8_e4m3fn with scales for the weights that the model's directory has in FP8.
- `/update_weights_from_delta` {path, weight_version, flush_cache}: applies a file of `--weights-dir` with the
  changes since the version that it has (`rlcore_toolkit.apply_delta`); refused, with nothing changed, where
  the file is damaged or made for other weights.
- With `Accept: application/x-ndjson` a batch begins in the order of its prompts, which need not have `n` in
  common, and each prompt is answered by a line as soon as its samples have ended: `{"index", "answers"}`, or
  `{"index", "error"}` where it is refused. So equal batches on an idle server give bit-equal answers. The
  same is had by pause_generation, posting all, and continue_generation.
- `packed: true` gives tokens and log-probs, beside `return_logprob`, as `meta_info.output_packed` and, with
  `logprob_start_len` of 0 or more, `meta_info.input_packed`: {ids, log_probs}, base64 of little-endian int32
  and float64. There are neither `output_ids` nor rows then.
- `sampling_seed` fixes a sample by (seed, index among `n`, prompt), whatever else is in the batch.

`/update_weights_from_distributed` takes flattened buckets (`load_format` "flattened_bucket") alone.

An update is done between two steps. Running samples go on: with `flush_cache` (the default) what they had
computed is computed anew with the new weights, without it they keep their old keys and values;
`weight_versions` tells which tokens came from which weights. Between /begin_weight_update and
/end_weight_update no step is made.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from aiohttp import web

from rlcore_local.app import CHAT, CLASSIFY, guarded, read_body, refuse
from rlcore_local.chat import Chat
from rlcore_local.controls import Controls
from rlcore_local.joint_requests import GENERATE
from rlcore_local.requests import Asks, RequestError, parse_generate
from rlcore_local.sequences import Sequence
from rlcore_local.service import Answer, Answers, Service

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
        if LINES in request.headers.get("Accept", ""):
            return await self._lines(request)
        asks = await self.service.tokenized(parse_generate(await read_body(request)))
        if asks.stream:
            sequences = self.service.sequences(asks)
            with self.service.begun(sequences) as incoming:
                return await self._stream(request, self.service.merged(sequences, incoming), asks.is_single)
        answers = await self.service.answers(asks)
        answer = orjson.dumps(answers[0] if asks.is_single else answers)
        return web.Response(body=answer, content_type="application/json")

    async def _lines(self, request: web.Request) -> web.StreamResponse:
        """A line for each prompt."""
        asks = await self.service.tokenized(parse_generate(await read_body(request), alike=False))
        if asks.stream:
            raise RequestError(f"stream: must be false with Accept: {LINES}")
        prompts: dict[int, list[Sequence]] = {}
        refused = b""
        rids: set[str] = set()
        for index, ask in enumerate(asks.asks):
            try:
                # Each by itself: a prompt that is refused refuses no other.
                samples = self.service.sequences(Asks(asks=[ask], is_single=False, stream=False))
                if not rids.isdisjoint(sequence.rid for sequence in samples):
                    raise RequestError("Duplicate request IDs detected within the request")
            except RequestError as error:
                refused += _line(index, error={"message": str(error)})
                continue
            prompts[index] = samples
            rids.update(sequence.rid for sequence in samples)
        sequences = [sequence for samples in prompts.values() for sequence in samples]
        for order, sequence in enumerate(sequences):
            sequence.order = order
        response = web.StreamResponse(headers={"Content-Type": LINES})
        with self.service.begun(sequences) as answers:
            await response.prepare(request)
            if refused:
                await response.write(refused)
            async for ready in _answered(prompts, answers):
                await response.write(ready)
            await response.write_eof()
        return response

    async def _stream(
        self, request: web.Request, answers: AsyncIterator[tuple[int, Answer]], is_single: bool
    ) -> web.StreamResponse:
        """Server-sent events: each holds all that a sample has so far, and its `index` in a batch."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for index, answer in answers:
            event: Answer = answer if is_single else {**answer, "index": index}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _answered(prompts: Mapping[int, list[Sequence]], answers: Answers) -> AsyncIterator[bytes]:
    """The lines of those of `prompts` whose samples have all ended, as they do. `answers`: to the samples."""
    prompt_of = {sequence: index for index, samples in prompts.items() for sequence in samples}
    left = {index: len(samples) for index, samples in prompts.items()}
    newest: dict[Sequence, Answer] = {}
    while left:
        ended = [await answers.get()] + [answers.get_nowait() for _ in range(answers.qsize())]
        newest.update(ended)
        lines: list[bytes] = []
        for sequence, _ in ended:
            index = prompt_of[sequence]
            left[index] -= 1
            if not left[index]:
                del left[index]
                lines.append(_line(index, answers=[newest.pop(sequence) for sequence in prompts[index]]))
        if lines:
            yield b"".join(lines)


def _line(index: int, **fields: Any) -> bytes:
    return orjson.dumps({"index": index, **fields}) + b"\n"
