"""The routes of a sequence classifier: SGLang's `/classify`, and what every server answers.

`/classify` {input_ids or text, one or a list; rid} answers {embedding: [score of each label], meta_info}, or
a list of such. A request is computed by itself, so that its scores do not depend on what else is asked.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from rlcore import __version__
from rlcore_local.app import ABILITIES, CHAT, CLASSIFY, Handler, guarded, information, parse, refuse
from rlcore_local.classifier import Classifier
from rlcore_local.joint_requests import GENERATE
from rlcore_local.requests import InputBody, RequestError, prompts_of, rids_of, token_ids
from rlcore_local.settings import Settings

T = TypeVar("T")


class ClassifyBody(InputBody):
    """The JSON of `/classify`."""

    rid: str | list[str] | None = None


class Classify:
    """The handlers, by path in `routes`. `thread`: the one that has made the classifier."""

    def __init__(self, settings: Settings, thread: ThreadPoolExecutor, classifier: Classifier) -> None:
        self._settings = settings
        self._thread = thread
        self._classifier = classifier

    def routes(self) -> dict[str, Handler]:
        """Every path with its handler."""
        return {CLASSIFY: self.classify, **information(self)}

    async def classify(self, request: web.Request) -> web.Response:
        """Check, score, answer."""
        body = await parse(request, ClassifyBody)
        prompts, is_batch = prompts_of(body)
        texts = [self._checked(prompt) for prompt in prompts]
        rids = rids_of(body.rid, len(texts), is_batch)
        # One by one: where nobody waits any more, the rest is not computed.
        rows = [
            row
            for batch in self._classifier.batches(texts)
            for row in await self._call(partial(self._classifier.scores, batch))
        ]
        answers = [
            _answer(row, rid, len(text)) for row, (_, rid), text in zip(rows, rids, texts, strict=True)
        ]
        return web.json_response(answers if is_batch else answers[0])

    async def health_generate(self, _: web.Request) -> web.Response:
        """Whether a text can be scored."""
        await self._call(lambda: self._classifier.scores([[0]]))
        return web.Response()

    async def server_info(self, _: web.Request) -> web.Response:
        """What is served, and what this server can do, told when the computing thread has time."""
        await self._call(lambda: None)
        return web.json_response(
            {
                **self._settings.model_dump(mode="json"),
                "engine": "local",
                "abilities": ABILITIES,
                "version": __version__,
                "context_length": self._classifier.context_length,
                "capabilities": sorted(path.strip("/") for path in self.routes()),
            }
        )

    async def model_info(self, _: web.Request) -> web.Response:
        """What is served."""
        config, path = self._classifier.model.config, str(self._settings.model_path)
        return web.json_response(
            {
                "model_path": path,
                "tokenizer_path": path,
                "is_generation": False,
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    def _checked(self, prompt: list[int] | str) -> list[int]:
        ids = token_ids(prompt, self._classifier.tokenizer, self._classifier.vocab_size)
        if len(ids) > self._classifier.context_length:
            raise RequestError(
                f"The input ({len(ids)} tokens) is longer than the model's context length "
                f"({self._classifier.context_length} tokens)."
            )
        return ids

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


async def start(settings: Settings) -> Classify:
    """A classifier in a thread of its own, because OpenMP keeps a pool for each thread that ever computed."""
    thread = ThreadPoolExecutor(1)
    classifier = await asyncio.get_running_loop().run_in_executor(thread, Classifier, settings)
    return Classify(settings, thread, classifier)


def make_app(served: Classify, token: str) -> web.Application:
    """The application; `token` is what clients must bear."""
    app = guarded(token, served.routes())
    for path in (GENERATE, CHAT):
        refuse(app, path, f"The model gives scores, not tokens: {path} needs a language model.")
    return app


def _answer(scores: list[float], rid: str, length: int) -> dict[str, Any]:
    end = {"type": "length", "length": 0}
    return {"embedding": scores, "meta_info": {"id": rid, "finish_reason": end, "prompt_tokens": length}}
