"""The service and its compute thread, without HTTP: what becomes of those who wait no longer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rlcore_local.process import start
from rlcore_local.requests import RequestError, parse_generate
from rlcore_local.service import Service
from rlcore_local.settings import Settings

LIMIT_S = 30.0


@pytest.fixture
async def service(model_path: Callable[..., Path]) -> AsyncIterator[Service]:
    made = await start(Settings(model_path=model_path("qwen3"), threads=1), asyncio.get_running_loop())
    yield made
    while any(await made.call(made.scheduler.counts)):  # it answers in this loop, which is about to close
        pass


async def test_who_leaves_before_a_call_begins_or_ends_does_no_harm(service: Service) -> None:
    begun, hold, done = threading.Event(), threading.Event(), list[str]()

    def held() -> None:
        begun.set()
        hold.wait(LIMIT_S)
        done.append("held")

    running = asyncio.ensure_future(service.call(held))
    queued = asyncio.ensure_future(service.call(lambda: done.append("queued")))
    await asyncio.to_thread(begun.wait, LIMIT_S)
    for one in (running, queued):
        one.cancel()
        await asyncio.wait([one])
    hold.set()
    async with asyncio.timeout(LIMIT_S):
        assert await service.call(lambda: "alive") == "alive"
    assert done == ["held"]


async def test_an_answer_goes_to_the_request_that_it_is_of(service: Service) -> None:
    """A rid may be used again as soon as its request has ended, while the step that answers it goes on."""
    body: dict[str, Any] = {"input_ids": [5, 6], "rid": "a", "sampling_params": {"max_new_tokens": 1}}
    (first,) = service.sequences(parse_generate(body))
    service.begin([first])
    service.end([first], finished=False)
    (second,) = service.sequences(parse_generate(body))
    with service.begun([second]) as answers:
        service.dispatch([(first, {"of": "first"}), (second, {"of": "second"})])
        assert await answers.get() == (second, {"of": "second"})


async def test_texts_are_tokenized_beside_the_event_loop(service: Service) -> None:
    read = threading.Event()

    class Slow:
        def encode(self, text: str) -> list[int]:
            return [5, 6] if read.wait(LIMIT_S / 10) else []

    service.tokenizer = cast(Any, Slow())
    tokenizing = asyncio.ensure_future(service.tokenized(parse_generate({"text": ["x", "y"]})))
    await asyncio.sleep(0.05)
    read.set()  # in the loop, which would not come here before the tokenizer has given up
    assert [ask.prompt for ask in (await tokenizing).asks] == [[5, 6], [5, 6]]


async def test_a_text_that_cannot_fit_is_not_read(service: Service) -> None:
    asks = parse_generate({"text": ["x", "x" * 3_000_000]})
    with pytest.raises(RequestError, match=r"its 3000000 characters cannot be within"):
        await service.tokenized(asks)
