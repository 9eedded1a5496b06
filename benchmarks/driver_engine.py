"""The scripted engine of `driver.py`: a server that has its answers ready, as `local` or SGLang give them."""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import orjson
from aiohttp import web

from rlcore_local.app import ABILITIES
from rlcore_local.requests import Asks, parse_generate
from rlcore_local.sequences import Sequence

VOCAB = 100_000
CHARS = 4
"""Characters of the text for each token, as in English."""


class Scripted:
    """Answers any prompt with `tokens` tokens, which differ from sample to sample."""

    def __init__(self, form: str, tokens: int) -> None:
        self._form, self._tokens = form, tokens
        self._made: dict[tuple[int, bool, bool], bytes] = {}

    async def info(self, _: web.Request) -> web.Response:
        """What the driver asks before its first request."""
        says = {"abilities": [one for one in ABILITIES if one != "sessions"]} if self._form == "local" else {}
        return web.json_response({"version": "scripted", "capabilities": ["generate"], **says})

    async def generate(self, request: web.Request) -> web.Response:
        """As the server of that form answers; what it says is made before it is timed."""
        asks = parse_generate(orjson.loads(await request.read()))
        return web.Response(body=self._answer(asks), content_type="application/json")

    def _answer(self, asks: Asks) -> bytes:
        samples = len(asks.asks) * asks.asks[0].params.n
        key = samples, asks.is_single, asks.asks[0].packed
        if key not in self._made:
            answers = [self._sample(asks, index) for index in range(samples)]
            self._made[key] = orjson.dumps(answers[0] if asks.is_single else answers)
        return self._made[key]

    def _sample(self, asks: Asks, index: int) -> dict[str, Any]:
        ask, draw = asks.asks[0], np.random.default_rng(index)
        # A log-prob is a float32 of the model, as a double.
        log_probs = -draw.exponential(size=self._tokens).astype(np.float32).astype(np.float64)
        one = Sequence(
            rid=str(index),
            request=str(index),
            order=index,
            prompt=[1, 2, 3],
            params=ask.params,
            key=index,
            limit=self._tokens,
            stop_ids=frozenset(),
            return_logprob=True,
            packed=ask.packed,
            output=draw.integers(0, VOCAB, self._tokens).tolist(),
            logprobs=log_probs.tolist(),
            versions=[(0, "0")],
            finish={"type": "length", "length": self._tokens},
        )
        words = random.Random(index).choices("abcdefgh ", k=CHARS * self._tokens)
        return {**one.answer(None), "text": "".join(words)}


def main() -> None:
    """Serve until the benchmark ends this process."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--form", choices=("local", "sglang"), required=True)
    options.add_argument("--tokens", type=int, required=True)
    args = options.parse_args()
    scripted = Scripted(args.form, args.tokens)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/server_info", scripted.info)
    app.router.add_post("/generate", scripted.generate)
    web.run_app(app, host="127.0.0.1", port=args.port, print=lambda _: None)


if __name__ == "__main__":
    main()
