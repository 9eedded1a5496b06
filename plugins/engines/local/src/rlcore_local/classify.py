"""The routes of a sequence classifier: SGLang's `/classify`, and what every server answers.

`/classify` {input_ids or text, one or a list; rid} answers {embedding: [score of each label], meta_info}, or
a list of such. A request is computed by itself, so that its scores do not depend on what else is asked.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from aiohttp import web
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification

from rlcore import CLASSIFIER_HEAD, ModelError, __version__, torch_dtype
from rlcore_local.app import ABILITIES, CHAT, CLASSIFY, Handler, guarded, information, parse, refuse
from rlcore_local.joint_requests import GENERATE
from rlcore_local.loading import context_length_of, device_named, load_config, load_tokenizer, place
from rlcore_local.requests import InputBody, RequestError, prompts_of, rids_of, token_ids
from rlcore_local.settings import Settings
from rlcore_local.weights import load_full
from rlcore_machine import compute_threads


class Classifier:
    """The model, and the tokenizer where it has one. One thread makes it and calls it."""

    def __init__(self, settings: Settings) -> None:
        compute_threads(settings.threads)
        self.model = _load(settings)
        place(self.model, device_named(settings.device))
        self.context_length = context_length_of(self.model.config, settings.context_length)
        self.tokenizer = load_tokenizer(settings.model_path)
        self.vocab_size: int = self.model.config.get_text_config().vocab_size
        self._pad: int | None = self.model.config.get_text_config().pad_token_id
        # transformers finds the end of a text by the padding behind it.
        self._max_batch = 1 if self._pad is None else settings.max_batch

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
        """The texts as `scores` takes them."""
        for start in range(0, len(texts), self._max_batch):
            yield texts[start : start + self._max_batch]

    @torch.inference_mode()
    def scores(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """The scores of each text of a batch, one for each label: of what stands where its last token, other
        than the padding token, is. The same call gives the same bits."""
        width = max(map(len, texts))
        pad = 0 if self._pad is None else self._pad
        device = self.model.device
        ids = torch.tensor([[*text, *[pad] * (width - len(text))] for text in texts], device=device)
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts], device=device)
        scores: list[list[float]] = self.model(ids, attention_mask=mask, use_cache=False).logits.tolist()
        return scores


def _load(settings: Settings) -> PreTrainedModel:
    path, models = settings.model_path, AutoModelForSequenceClassification
    config = load_config(path)
    known: Any = models._model_mapping.get(type(config), object)
    if not (issubclass(known, GenericForSequenceClassification) and known.__name__ in config.architectures):
        raise ModelError(
            f"--model-path {path}: the local engine cannot serve {config.architectures[0]}; of reward models "
            f"it serves transformers' decoders (Qwen3{CLASSIFIER_HEAD}, …)."
        )
    return load_full(models, path, config, torch_dtype(settings.dtype))[0]


T = TypeVar("T")
END = {"type": "length", "length": 0}


class Classify:
    """The handlers, by path in `routes`. `thread`: the one that has made the classifier."""

    def __init__(self, settings: Settings, thread: ThreadPoolExecutor, classifier: Classifier) -> None:
        self._settings = settings
        self._thread = thread
        self._classifier = classifier

    def routes(self) -> dict[str, Handler]:
        """Every path with its handler."""
        return {
            CLASSIFY: self.classify,
            **information(self.health_generate, self.server_info, self.model_info),
        }

    async def classify(self, request: web.Request) -> web.Response:
        """Check, score, answer."""
        body = await parse(request, InputBody)
        prompts, is_batch = prompts_of(body)
        texts = [self._checked(prompt) for prompt in prompts]
        rids = rids_of(body, len(texts), is_batch)
        # One by one: where nobody waits any more, the rest is not computed.
        rows = [
            row
            for batch in self._classifier.batches(texts)
            for row in await self._call(partial(self._classifier.scores, batch))
        ]
        answers = [
            {"embedding": row, "meta_info": {"id": rid, "finish_reason": END, "prompt_tokens": len(text)}}
            for row, (_, rid), text in zip(rows, rids, texts, strict=True)
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
        served = {"model_path": path, "tokenizer_path": path, "is_generation": False}
        kind = {"model_type": config.model_type, "architectures": config.architectures}
        return web.json_response({**served, **kind})

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
