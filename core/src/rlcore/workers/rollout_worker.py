"""`RolloutWorker`: the actor that runs generators in an event loop of its own.

It has neither engines nor rewards: the driver, which has them, answers its requests.
"""

import asyncio
import itertools
import logging
import os
import pickle
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from rlcore.api.errors import PluginError, RlcoreError, faults_of, one_line
from rlcore.api.generation import Completion, GroupGenerator, Request
from rlcore.api.part import Part
from rlcore.api.plugin_file import PluginFile, install_plugin_files
from rlcore.api.tokens import Tokenizer, load_tokenizer
from rlcore.api.types import Sample, Sampling
from rlcore.rollout.context import ContextBase
from rlcore.rollout.generators import Generators, blamed, check_samples, name_of
from rlcore.workers.actors import BEAT_SECONDS
from rlcore.workers.rollout_messages import FromWorker, Message, changed, changes_of
from rlcore_machine import defer_collection, settle_heap, switch_threads_often

TAKE_SECONDS = 1.0
"""`take` waits this long for a message."""


class RolloutWorker:
    """`put` and `take` carry messages. `take`, `watch` and `stop` have threads of their own."""

    def __init__(self, plugin_files: Sequence[PluginFile]) -> None:
        # A worker has one core, and there may be as many workers as cores: no threads in the tokenizer.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # Classes of file plugins must be importable before anything that holds them is unpickled.
        install_plugin_files(plugin_files)
        self._loop = asyncio.new_event_loop()
        self._messages: list[Message] = []
        self._arrived = threading.Condition()
        self._numbers = itertools.count()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    def start(self, parts: Sequence[Part], tokenizer: str) -> None:
        """Build the generators of `parts`. `tokenizer`: its directory. Raises `UserError`."""
        defer_collection()
        self._tokenizer: Tokenizer = load_tokenizer(tokenizer)
        self._generators = Generators(parts)
        self._built = [self._generators.of(part) for part in parts]
        logging.getLogger().addHandler(_Forwarding(self))
        settle_heap()
        switch_threads_often()
        threading.Thread(target=self._run, daemon=True, name="generators").start()

    def put(self, messages: Sequence[Message]) -> None:
        """What the driver says; returns at once."""
        self._loop.call_soon_threadsafe(self._read, messages)

    def take(self) -> list[Message]:
        """What the driver has not been told yet. Waits for it, but not for ever."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._messages, TAKE_SECONDS)
            messages, self._messages = self._messages, []
        return messages

    def watch(self) -> None:
        """A sign of life (see `watched`)."""
        time.sleep(BEAT_SECONDS)

    def stop(self) -> None:
        """End all calls, and have the generators release what they hold. Their last requests are answered."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()

    def send(self, what: FromWorker, number: int, content: bytes = b"") -> None:
        """Tell the driver. Thread-safe. Messages of one turn of the event loop go together."""
        with self._arrived:
            self._messages.append(Message(what, number, content))
            is_first = len(self._messages) == 1
        if is_first:  # by way of the loop, so that all messages of this turn are there when `take` wakes
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        with self._arrived:
            self._arrived.notify()

    def is_open(self, call: int) -> bool:
        """Whether the driver still waits for the call, and so answers its requests."""
        return call in self._calls

    async def ask(self, what: FromWorker, *content: Any) -> Any:
        """What the driver answers to a request."""
        number, answer = next(self._numbers), self._loop.create_future()
        self._requests[number] = answer
        self.send(what, number, _pickled(content))
        try:
            message: Message = await answer
        except asyncio.CancelledError:
            self.send("withdraw", number)
            raise
        finally:
            del self._requests[number]
        value = pickle.loads(message.content)
        if message.what == "failure":
            raise value
        return value

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            # A generator has raised SystemExit: nobody would answer the driver any more.
            os._exit(1)

    def _read(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.what == "generate":
                call = self._loop.create_task(self._generate(message.number, message.content))
                self._calls[message.number] = call
            elif message.what == "cancel":
                if (task := self._calls.get(message.number)) is not None:
                    self._loop.call_soon(task.cancel)  # it begins first, so it tells the driver of its end
            elif (answer := self._requests.get(message.number)) is not None and not answer.done():
                answer.set_result(message)

    async def _generate(self, number: int, content: bytes) -> None:
        name = ""
        try:
            # What cannot be unpickled here is the fault of this call; the other calls go on.
            with faults_of("A rollout worker"):
                place, by_group, sampling, context_length, samples = pickle.loads(content)
            generator, name = self._built[place], name_of(self._built[place])
            ctx = DriverContext(self._tokenizer, sampling, context_length, self, number, name, samples)
            with blamed(name):
                if by_group:
                    made: Any = await cast(GroupGenerator, generator).generate_group(ctx, samples)
                else:
                    made = await generator.generate(ctx, samples[0])
                is_list = by_group or isinstance(made, list)
                parts = list(made) if is_list else [made]
                check_samples(f"The generator {name}", parts)
                content = _pickled((is_list, changes_of(parts, samples)))
            self.send("made", number, content)
        except (RlcoreError, asyncio.CancelledError) as error:
            self.send("failed", number, pickled_error(error, name))
        finally:
            del self._calls[number]

    async def _end(self) -> None:
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._generators.close()


@dataclass(eq=False)
class DriverContext(ContextBase):
    """The `GenerationContext` of a call, whose requests the driver answers."""

    tokenizer: Tokenizer
    sampling: Sampling
    context_length: int
    worker: RolloutWorker
    call: int
    name: str
    samples: Sequence[Sample]

    async def generate(self, request: Request) -> Sequence[Completion]:
        """The completions that the driver's context gives."""
        return cast(Sequence[Completion], await self._ask("complete", request))

    async def score(self, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples of one group, scored by the run's reward."""
        return changed(await self._ask("score", changes_of(samples, self.samples)), samples)

    async def _ask(self, what: FromWorker, *content: Any) -> Any:
        if not self.worker.is_open(self.call):
            raise PluginError(
                f"The generator {self.name} asked its context after the call had ended; await all that "
                "a call starts before it returns."
            )
        return await self.worker.ask(what, self.call, *content)


class _Forwarding(logging.Handler):
    """What a generator logs, the driver logs."""

    def __init__(self, worker: RolloutWorker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        try:
            content = _pickled((record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)
            return
        self._worker.send("log", 0, content)


def pickled_error(error: BaseException, name: str) -> bytes:
    """What the generator `name` raised, pickled; one that cannot travel is a `PluginError` with its text."""
    content = b""
    with suppress(Exception):
        content = _pickled(error)
        pickle.loads(content)  # as of a class with arguments of its own
        return content
    return _pickled(PluginError(f"The generator {name} failed: {one_line(error)}."))


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
