"""Between HTTP and the compute thread: samples in, answers out. All of it runs in the event loop's thread."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from rlcore_local.requests import Ask, Asks, RequestError, token_ids
from rlcore_local.scheduler import Scheduler
from rlcore_local.sequences import Sequence, noise_keys
from rlcore_local.settings import Settings

T = TypeVar("T")
Answer = dict[str, Any]
Answers = asyncio.Queue[tuple[Sequence, Answer]]
"""The answers to all samples of a request, as they come."""


MAX_TEXT = 1 << 20
MAX_CHARACTERS_A_TOKEN = 64
"""A prompt has at most `MAX_TEXT` characters, and so many for each token of the context."""


class Service:
    """What the routes call.

    `context_length`, `vocab_size`, `stop_ids`: of the model. `model_path` follows updates from disk.
    """

    def __init__(
        self,
        settings: Settings,
        scheduler: Scheduler,
        *,
        tokenizer: PreTrainedTokenizerBase | None,
        context_length: int,
        stop_ids: frozenset[int],
    ) -> None:
        self.settings = settings
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.context_length = context_length
        self.vocab_size = scheduler.weights.vocab_size
        self.stop_ids = stop_ids
        self.model_path = settings.model_path
        self._arrivals = itertools.count()
        self._tokenizing = asyncio.Lock()
        self._listeners: dict[Sequence, Answers] = {}
        self._rids: set[str] = set()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function in the compute thread, between two steps."""
        return await asyncio.wrap_future(self.scheduler.call(function))

    def dispatch(self, answers: list[tuple[Sequence, Answer]]) -> None:
        """Pass answers on to those who wait for them."""
        for sequence, answer in answers:
            if (listener := self._listeners.get(sequence)) is not None:
                listener.put_nowait((sequence, answer))

    async def tokenized(self, asks: Asks) -> Asks:
        """`asks` with tokens in place of texts; other requests are answered meanwhile."""
        texts = [ask.prompt for ask in asks.asks if isinstance(ask.prompt, str)]
        if not texts:
            return asks
        longest = max(map(len, texts))
        if longest > MAX_TEXT + MAX_CHARACTERS_A_TOKEN * self.context_length:
            raise RequestError(
                f"text: its {longest} characters cannot be within the model's context length "
                f"({self.context_length} tokens)."
            )
        async with self._tokenizing:
            return await asyncio.to_thread(self._with_tokens, asks)

    def _with_tokens(self, asks: Asks) -> Asks:
        def tokens(ask: Ask) -> Ask:
            ids = token_ids(ask.prompt, self.tokenizer, self.vocab_size)
            return ask.model_copy(update={"prompt": ids})

        return asks.model_copy(update={"asks": [tokens(ask) for ask in asks.asks]})

    def sequences(self, asks: Asks) -> list[Sequence]:
        """The samples that a request asks for, prompt by prompt; `RequestError` where one cannot be had."""
        samples = [
            sequence
            for ask, prompt in [(ask, self._checked_prompt(ask)) for ask in asks.asks]
            for sequence in self._samples(ask, prompt, asks.stream)
        ]
        for order, sequence in enumerate(samples):
            sequence.order = order
            if sequence.rid in self._rids:
                raise RequestError(f"Duplicate request ID detected: {sequence.rid}")
        return samples

    def _checked_prompt(self, ask: Ask) -> list[int]:
        prompt = token_ids(ask.prompt, self.tokenizer, self.vocab_size)
        length, most = len(prompt), ask.params.max_new_tokens or 0
        if length >= self.context_length:
            raise RequestError(
                f"The input ({length} tokens) is longer than the model's context length "
                f"({self.context_length} tokens)."
            )
        if length + most > self.context_length:
            raise RequestError(
                "Requested token count exceeds the model's maximum context length of "
                f"{self.context_length} tokens: {length} of the input and {most} for the completion."
            )
        if not -1 <= ask.logprob_start_len < length:
            raise RequestError(
                f"logprob_start_len: {ask.logprob_start_len} is not within the {length} input tokens"
            )
        for column in sorted(ask.columns - self.scheduler.weights.choices.columns):
            raise RequestError(f"return_{column}: the model has none")
        if ask.adapter not in (known := self.scheduler.weights.adapters):
            found = f"lora_path: found {ask.adapter!r}, expected an adapter that was published"
            raise RequestError(f"{found} ({', '.join(known[1:]) or 'none was'})")
        if ask.params.stop and self.tokenizer is None:
            raise RequestError(
                "sampling_params.stop: the model has no tokenizer, so stop strings cannot be found"
            )
        return prompt

    def _samples(self, ask: Ask, prompt: list[int], stream: bool) -> list[Sequence]:
        params = ask.params
        # A request without a seed gets one of its own, so that the same prompt twice gives two samples.
        seed = str(params.sampling_seed)
        if params.sampling_seed is None:
            seed = f"{self.settings.seed}:{next(self._arrivals)}"
        room = self.context_length - len(prompt)
        scored = ask.return_logprob and ask.logprob_start_len >= 0
        stop_ids = frozenset() if params.ignore_eos else self.stop_ids | frozenset(params.stop_token_ids)
        return [
            Sequence(
                rid=ask.rid if params.n == 1 else f"{ask.rid}_{index}",
                request=ask.request,
                order=0,
                prompt=prompt,
                params=params,
                key=key,
                limit=room if params.max_new_tokens is None else params.max_new_tokens,
                stop_ids=stop_ids,
                return_logprob=ask.return_logprob,
                score_from=ask.logprob_start_len if scored else None,
                columns=ask.columns,
                packed=ask.packed,
                adapter=ask.adapter,
                stream=stream,
            )
            for index, key in enumerate(noise_keys(seed, prompt, params.n))
        ]

    def begin(self, sequences: list[Sequence]) -> Answers:
        """Hand samples to the scheduler; `end` must follow."""
        answers: Answers = asyncio.Queue()
        for sequence in sequences:
            self._listeners[sequence] = answers
            self._rids.add(sequence.rid)
        if sequences:
            self.scheduler.post(lambda: self.scheduler.add(sequences))
        return answers

    async def answers(self, asks: Asks) -> list[Answer]:
        """The last answer for each sample that a request asks for; they are aborted where it is given up."""
        sequences = self.sequences(asks)
        with self.begun(sequences) as answers:
            last = dict([await answers.get() for _ in sequences])
        return [last[sequence] for sequence in sequences]

    @contextmanager
    def begun(self, sequences: list[Sequence]) -> Iterator[Answers]:
        """Their answers. The samples are aborted unless the block is left by its end."""
        answers = self.begin(sequences)
        finished = False
        try:
            yield answers
            finished = True
        finally:
            self.end(sequences, finished=finished)

    @staticmethod
    async def merged(sequences: list[Sequence], answers: Answers) -> AsyncIterator[tuple[int, Answer]]:
        """(index, newest answer) of streamed samples, as they come, until all have ended."""
        places = {sequence: place for place, sequence in enumerate(sequences)}
        left = len(sequences)
        while left:
            newest = dict([await answers.get()])
            newest.update(answers.get_nowait() for _ in range(answers.qsize()))
            for sequence, answer in newest.items():
                left -= answer["meta_info"]["finish_reason"] is not None
                yield places[sequence], answer

    def end(self, sequences: list[Sequence], *, finished: bool) -> None:
        """Forget samples; those that nobody waits for any more are aborted."""
        for sequence in sequences:
            del self._listeners[sequence]
            self._rids.remove(sequence.rid)
        if not finished:
            rids = {sequence.rid for sequence in sequences}
            self.scheduler.post(lambda: self.scheduler.abort(rids))

    def shared_file(self, name: str) -> Path:
        """A file inside `--weights-dir`, symbolic links resolved; `RequestError` for anything elsewhere."""
        if self.settings.weights_dir is None:
            raise RequestError("path: the server was started without --weights-dir")
        root = self.settings.weights_dir.resolve()
        path = (root / name).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise RequestError(f"path: {name} is not a file inside the server's --weights-dir")
        return path
