"""What servers answer to `/generate`, read into packed numbers."""

import asyncio
import base64
import gc
import json
import math
import random
import struct
from itertools import pairwise
from typing import Any

import orjson
import pytest

from rlcore.api.errors import EngineError
from rlcore.engines.client_answers import INPUT, OUTPUT, in_turn, read_answers, token_log_probs

TEXT = 'a "quoted" ],[ "output_ids":[9] \\ "output_token_logprobs":[[1,2,null]] text'
"""As an answer may hold it: whatever it says is no key of the answer."""


def rows(count: int, seed: int = 0) -> list[list[Any]]:
    draw = random.Random(seed)
    return [[-draw.expovariate(1), draw.randrange(200_000), None] for _ in range(count)]


def answer(output: list[list[Any]] | None, **meta: Any) -> dict[str, Any]:
    found = {} if output is None else {OUTPUT: output}
    ids = [row[1] for row in output or []]
    said = {"finish_reason": {"type": "stop", "matched": TEXT}, **found, "weight_version": "3", **meta}
    return {"text": TEXT, "output_ids": ids, "meta_info": said}


def read(body: bytes) -> Any:
    return asyncio.run(read_answers(body))


def check(found: Any, expected: list[list[Any]]) -> None:
    """Bit for bit what json.loads gives."""
    assert found.ids == [row[1] for row in expected]
    values = [math.nan if row[0] is None else row[0] for row in expected]
    assert found.log_probs.to_bytes() == struct.pack(f"<{len(values)}d", *values)


@pytest.mark.parametrize("dumps", [orjson.dumps, lambda one: json.dumps(one, indent=1).encode()])
@pytest.mark.parametrize("count", [1, 3, 5000])
def test_rows_are_read_as_json_gives_them(dumps: Any, count: int) -> None:
    """Of servers that write JSON tightly, and of those that do not."""
    body = dumps(answer(rows(count), **{INPUT: [[None, 5, None], *rows(3, seed=1)]}))
    found = read(body)
    whole = json.loads(body)
    check(token_log_probs(found["meta_info"], OUTPUT), whole["meta_info"][OUTPUT])
    check(token_log_probs(found["meta_info"], INPUT), whole["meta_info"][INPUT])
    assert found["text"] == TEXT
    assert found["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    assert found["meta_info"]["weight_version"] == "3"


def test_each_sample_has_its_own_rows() -> None:
    several = [answer(rows(4, seed=1)), answer([]), answer(None), answer(rows(2, seed=2))]
    found = read(orjson.dumps(several))
    for one, expected in zip(found, several, strict=True):
        check(token_log_probs(one["meta_info"], OUTPUT), expected["meta_info"].get(OUTPUT, []))


def test_rows_of_two_numbers_and_without_log_probs() -> None:
    (found,) = read(b'[{"meta_info":{"output_token_logprobs":[[-0.5,7],[null,8]]}}]')
    check(token_log_probs(found["meta_info"], OUTPUT), [[-0.5, 7], [None, 8]])


def test_rows_with_the_texts_of_tokens() -> None:
    named = [[-0.5, 7, "]]"], [-0.25, 8, '"'], [-0.125, 9, "[ ]"]]
    found = read(orjson.dumps([answer(rows(3)), answer(named)]))
    check(token_log_probs(found[0]["meta_info"], OUTPUT), rows(3))
    check(token_log_probs(found[1]["meta_info"], OUTPUT), named)


def test_what_local_packs() -> None:
    ids, values = [5, 2**31 - 1], [-0.1, math.nan]
    packed = {
        "ids": base64.b64encode(struct.pack("<2i", *ids)).decode(),
        "log_probs": base64.b64encode(struct.pack("<2d", *values)).decode(),
    }
    check(token_log_probs({"output_packed": packed}, OUTPUT), [[values[0], ids[0]], [None, ids[1]]])
    for broken in ({**packed, "ids": "AAAA"}, {**packed, "ids": ""}, {**packed, "log_probs": "?"}):
        with pytest.raises(EngineError, match="log-probs"):
            token_log_probs({"output_packed": broken}, OUTPUT)


@pytest.mark.parametrize("body", [b"", b"nothing", orjson.dumps(answer(rows(3)))[:-1]])
def test_no_json_is_told(body: bytes) -> None:
    with pytest.raises(EngineError, match="no JSON"):
        read(body)


def test_the_garbage_collector_has_nothing_to_walk() -> None:
    """A list for each token would set it off hundreds of times."""
    body = orjson.dumps(answer(rows(200_000)))
    collections: list[str] = []
    gc.collect()
    gc.callbacks.append(lambda phase, _: collections.append(phase))
    try:
        read(body)
    finally:
        gc.callbacks.pop()
    assert len(collections) < 20


async def test_long_answers_are_read_one_sample_in_a_round_of_the_loop() -> None:
    """Whatever has come at once, others of the loop have their turn between two samples."""
    done: list[int] = []
    seen: list[int] = []

    async def other() -> None:
        while len(done) < 12:
            seen.append(len(done))
            await asyncio.sleep(0)

    async def one(number: int) -> None:
        for _ in range(3):
            await in_turn(lambda: done.append(number), size=1 << 20)

    await asyncio.gather(other(), *(one(number) for number in range(4)))
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) == 1


def test_two_event_loops_do_not_meet() -> None:
    async def both() -> list[int]:
        return list(await asyncio.gather(*(in_turn(lambda: 1, size=1 << 20) for _ in range(3))))

    assert asyncio.run(both()) == asyncio.run(both()) == [1, 1, 1]
