"""The one thread that computes: it owns the model, admits waiting samples, and steps the running ones.

Everything reaches it as a call that it runs between two steps. The order of rows follows from the order of
the waiting list alone, so equal lists, begun at once, give bit-equal results.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from rlcore_local.choices import Chosen
from rlcore_local.decoder import PromptTokens
from rlcore_local.requests import RequestError
from rlcore_local.sampler import Draws, gather_draws, sample
from rlcore_local.sequences import Sequence
from rlcore_local.weights import Weights

T = TypeVar("T")
AT_ONCE = 64
"""Answers that are handed over while others of the same step are still being written."""
Deliver = Callable[[list[tuple[Sequence, dict[str, Any]]]], None]
"""Takes the answers that a step made: of samples that ended, and of each that is streamed."""


class Scheduler:
    """`max_batch`: rows at most. All methods but `post`, `call` and `run` belong to the compute thread."""

    def __init__(self, max_batch: int, deliver: Deliver) -> None:
        self.max_batch = max_batch
        self.deliver = deliver
        self.weights: Weights
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.weight_version = "default"
        self.paused = False
        self.updating = False
        self.released: frozenset[str] = frozenset()
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.finished_count = 0
        self.token_count = 0
        self._answers: list[tuple[Sequence, dict[str, Any]]] = []
        # Of the running rows, laid out again when they change and not at each step.
        self._draws: Draws | None = None
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, call: Callable[[], None]) -> None:
        """Run a call between two steps, and forget it."""
        self._calls.put(call)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a call between two steps, unless its future has been cancelled; its outcome is the future's."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return  # from here on nobody can cancel it
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._calls.put(run)
        return future

    def run(self) -> None:
        """Work for ever. Torch computes in this thread only."""
        assert threading.current_thread() is not threading.main_thread()
        with torch.inference_mode():
            while True:
                self._run_calls()
                if self._may_step():
                    self.step()
                self._hand_over()

    def _run_calls(self) -> None:
        """Run what has been asked for; wait for it where there is nothing else to do."""
        if not self._may_step():
            self._calls.get()()
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            call()

    @property
    def is_held(self) -> bool:
        """Whether no step is made, however much there is to do."""
        return self.paused or self.updating or bool(self.released)

    def counts(self) -> tuple[int, int]:
        """Samples that are running and waiting."""
        return len(self.running), len(self.waiting)

    def _may_step(self) -> bool:
        return not self.is_held and bool(self.waiting or self.running)

    def step(self) -> None:
        """Give each running sample one token, then admit waiting ones as far as there is room."""
        if self.running:
            self._decode()
        if self.waiting:
            self._admit()

    def add(self, sequences: list[Sequence]) -> None:
        """Take samples at the end of the waiting list."""
        for sequence in sequences:
            sequence.mark_version(self.weight_version)
        self.waiting += sequences

    def _admit(self) -> None:
        room = self.max_batch - len(self.running)
        admitted, self.waiting = self.waiting[:room], self.waiting[room:]
        if not admitted:
            return
        # Samples of one policy and the same tokens share one prefill.
        groups: dict[tuple[str, tuple[int, ...]], list[Sequence]] = {}
        for sequence in admitted:
            groups.setdefault((sequence.adapter, tuple(sequence.tokens)), []).append(sequence)
        # Neighbors of like length waste less padding.
        ordered = sorted(groups.items(), key=lambda group: len(group[0][1]))
        prompts = [self._prompt(*key, members) for key, members in ordered]
        with self._choosing(admitted) as chosen:
            logits, scores = self.weights.decoder.prefill(prompts)
        rows: list[Sequence] = []
        sources: list[int] = []
        for index, (_, members) in enumerate(ordered):
            for sequence in members:
                sequence.chosen = {name: chosen[name][index].of_prompt() for name in sequence.columns}
                if sequence.score_from is not None and sequence.scores is None:
                    start, values = prompts[index].score_from, scores[index]
                    assert start is not None
                    assert values is not None
                    sequence.scores = values[sequence.score_from - start :]
                if sequence.limit > len(sequence.output):
                    rows.append(sequence)
                    sources.append(index)
                else:
                    sequence.finish = {"type": "length", "length": sequence.limit}
                    self._finish(sequence)
        if rows:
            self._extend(rows, logits[sources])

    @staticmethod
    def _prompt(adapter: str, tokens: tuple[int, ...], members: list[Sequence]) -> PromptTokens:
        starts = [
            member.score_from for member in members if member.score_from is not None and member.scores is None
        ]
        copies = sum(member.limit > len(member.output) for member in members)
        longest = max(len(member.prompt) + member.limit for member in members)
        return PromptTokens(tokens, longest, copies, min(starts) if starts else None, adapter)

    def _extend(self, rows: list[Sequence], logits: torch.Tensor) -> None:
        """Sample the first token of new rows, and let those that did not end with it run on."""
        self._accept(rows, logits, self._lay_out(rows))
        self.running += rows
        self._draws = None
        self._compact()

    def _decode(self) -> None:
        if self._draws is None:
            self._draws = self._lay_out(self.running)
        tokens = torch.tensor([sequence.output[-1] for sequence in self.running])
        # The last token was sampled, but is not in the cache yet.
        lengths = torch.tensor([len(sequence.prompt) + len(sequence.output) - 1 for sequence in self.running])
        with self._choosing(self.running) as chosen:
            logits = self.weights.decoder.decode(tokens, lengths)
        for row, sequence in enumerate(self.running):
            place = len(sequence.prompt) + len(sequence.output) - 1
            for name in sequence.columns:
                sequence.chosen[name].append(chosen[name][0].of_row(row, place))
        self._accept(self.running, logits, self._draws)
        self._compact()

    @contextmanager
    def _choosing(self, rows: list[Sequence]) -> Iterator[dict[str, list[Chosen]]]:
        """Filled afterwards: by column, what was chosen in each forward within, where one of `rows` asks."""
        chosen: dict[str, list[Chosen]] = {}
        choices = self.weights.choices
        choices.wanted = frozenset().union(*(row.columns for row in rows))
        yield chosen
        chosen |= choices.take()

    def _lay_out(self, rows: list[Sequence]) -> Draws:
        params, keys = [row.params for row in rows], [row.key for row in rows]
        return gather_draws(params, keys, self.weights.device)

    def _accept(self, rows: list[Sequence], logits: torch.Tensor, draws: Draws) -> None:
        counts = np.array([len(row.output) for row in rows], dtype=np.uint64)
        ids, logprobs = sample(logits, draws, counts)
        self.token_count += len(rows)
        for sequence, token, logprob in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            sequence.accept(token, logprob, self.tokenizer)
            if sequence.stream and sequence.finish is None:
                self._answers.append((sequence, sequence.answer(self.tokenizer)))

    def _compact(self) -> None:
        """Give up the rows of samples that ended; the last rows fill the holes."""
        for sequence in self.running:
            if sequence.finish is not None:
                self._finish(sequence)
        order = [row for row, sequence in enumerate(self.running) if sequence.finish is None]
        tail = [row for row in order if row >= len(order)]
        filled = [row if self.running[row].finish is None else tail.pop() for row in range(len(order))]
        if len(filled) < len(self.running):
            self.weights.decoder.keep(filled)
            self.running = [self.running[row] for row in filled]
            self._draws = None

    def _finish(self, sequence: Sequence) -> None:
        self.finished_count += 1
        self._answers.append((sequence, sequence.answer(self.tokenizer)))
        if len(self._answers) >= AT_ONCE:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._answers:
            self.deliver(self._answers)
            self._answers = []

    def abort(self, requests: set[str] | None) -> None:
        """End samples with what they have: those of some requests or of some rids, or all."""

        def hit(candidate: Sequence) -> bool:
            return requests is None or candidate.rid in requests or candidate.request in requests

        for sequence in [*self.waiting, *self.running]:
            if hit(sequence):
                sequence.abort("Aborted")
        for sequence in self.waiting:
            if sequence.finish is not None:
                self._finish(sequence)
        self.waiting = [sequence for sequence in self.waiting if sequence.finish is None]
        self._compact()

    def pause(self, mode: str) -> None:
        """Stop stepping. "abort" ends everything, "retract" puts running samples back before the waiting ones
        (they are computed anew afterwards), "in_place" leaves them where they are."""
        self.paused = True
        if mode == "abort":
            self.abort(None)
        elif mode == "retract":
            self.retract()

    def resume(self) -> None:
        """Step again. Samples that have not begun do so in the order of their rid."""
        self.paused = False
        begun = [sequence for sequence in self.waiting if sequence.output]
        fresh = [sequence for sequence in self.waiting if not sequence.output]
        # Meanwhile requests came in any order; in this one every run computes the same batches.
        self.waiting = begun + sorted(fresh, key=lambda sequence: (sequence.request, sequence.order))

    def retract(self) -> None:
        """Put the running samples before the waiting ones, and drop what was computed of them."""
        for sequence in self.running:
            sequence.retractions += 1
        self.waiting = self.running + self.waiting
        self.running = []
        self._draws = None
        self.weights.decoder.clear()

    def change_weights(self, change: Callable[[], None], version: str | None, flush: bool) -> None:
        """Replace weights. `flush`: running samples compute their keys and values anew, not keep them."""
        change()
        if version is not None:
            self.set_version(version)
        if flush and self.running:
            self.retract()

    def set_version(self, version: str) -> None:
        """Name the weights; tokens from here on belong to this version."""
        self.weight_version = version
        for sequence in [*self.waiting, *self.running]:
            sequence.mark_version(version)

    def flush(self) -> None:
        """Drop cached keys and values; `RequestError` while samples need them."""
        if self.running:
            raise RequestError(f"Flush cache failed: {len(self.running)} requests are running.")
        self.weights.decoder.clear()

    def release(self, parts: frozenset[str]) -> None:
        """Give back the memory of "kv_cache", "weights" or both; hold new requests until `reclaim` of all."""
        on_gpu = self.weights.device.type == "cuda"
        if not on_gpu:
            parts -= {"weights"}  # they are in host memory
        if not parts:
            return
        if self.running or self.waiting:
            count = len(self.running) + len(self.waiting)
            raise RequestError(f"Memory cannot be released: {count} requests are running or waiting.")
        if "kv_cache" in parts:
            self.weights.decoder.clear()
        if "weights" in parts:
            self.weights.release()
        if on_gpu:
            torch.cuda.empty_cache()  # a trainer waits for it
        self.released |= parts

    def reclaim(self, parts: frozenset[str]) -> None:
        """Undo `release`."""
        if "weights" in parts:
            self.weights.reclaim()
        self.released -= parts
