"""What a server answers to `/generate`, read without a Python object for each token.

An answer of 32,000 tokens is a megabyte of `[log-prob, id, null]`, and a group's has several of them. Made
into lists they are a million objects, through which the garbage collector walks again and again. So the
numbers are cut out of the text and read into packed ones, sample by sample; between two the event loop goes
on.
"""

import asyncio
import binascii
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import orjson

from rlcore.api.errors import EngineError
from rlcore.api.packed import PackedFloats, PackedInts

LONG = 1 << 16
"""Bytes whose reading takes about a millisecond."""
T = TypeVar("T")
OUTPUT, INPUT = "output_token_logprobs", "input_token_logprobs"
PACKED = {OUTPUT: "output_packed", INPUT: "input_packed"}
"""The keys of packed rows, which `local` sends if asked: base64 of little-endian int32 and float64."""
# A quote within a text of JSON has a backslash before it, so this matches keys alone.
_ROWS = re.compile(rb'"(?:output_ids|(output_token_logprobs|input_token_logprobs))":\s*\[\s*')
# A lock belongs to one event loop, and a process may have several, one after another.
_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
_ROWS_END = re.compile(rb"\]\s*\]")


@dataclass(frozen=True)
class TokenLogProbs:
    """Tokens and their log-probs, NaN where there is none."""

    ids: PackedInts
    log_probs: PackedFloats


async def read_answers(body: bytes) -> Any:
    """The JSON of `body`, with `TokenLogProbs` where it has rows of log-probs, and without its `output_ids`.

    Raises EngineError where it is no JSON.
    """
    cutter = _Cutter(body)
    while await in_turn(cutter.cut, size=len(body)):
        pass
    return await in_turn(cutter.rest, size=len(body))


class _Cutter:
    """Cuts the rows of one sample after the other out of `body`."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0
        self._parts: list[bytes] = []
        self._tables: list[TokenLogProbs] = []

    def cut(self) -> bool:
        """The next rows, or `output_ids`; False where there are none, or some that cannot be cut."""
        match = _ROWS.search(self._body, self._place)
        if match is None:
            return False
        start = match.end()
        if not match[1]:
            end = self._body.find(b"]", start)
        else:  # no rows: the list is empty
            last = _ROWS_END.search(self._body, start) if self._body[start : start + 1] == b"[" else None
            end = start if last is None else last.start() + 1
        rows = self._body[start:end] if match[1] else b""
        if b'"' in rows:  # the tokens' texts, which may hold any bracket
            return False
        self._parts.append(self._body[self._place : start])
        self._place = end
        if rows:
            self._parts.append(b"%d" % len(self._tables))
            self._tables.append(_parsed_rows(rows))
        return True

    def rest(self) -> Any:
        """The rest of the JSON, with each table back in its place."""
        answers = _loaded(b"".join((*self._parts, self._body[self._place :])))
        for answer in answers if isinstance(answers, list) else [answers]:
            meta = answer.get("meta_info") or {}
            for name in (OUTPUT, INPUT):
                if (rows := meta.get(name)) and isinstance(rows[0], int):
                    meta[name] = self._tables[rows[0]]
        return answers


async def in_turn(work: Callable[[], T], *, size: int) -> T:
    """`work()`; where it reads many bytes, nothing else of that kind is done in the same round of the loop.

    So the event loop waits for one sample at a time, however many answers have come at once.
    """
    if size < LONG:
        return work()
    async with _TURNS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        done = work()
        # Still with the lock: the event loop gets a round of its own before the next answer is read.
        await asyncio.sleep(0)
        return done


def size_of(meta: Mapping[str, Any]) -> int:
    """The bytes that `token_log_probs` has yet to read for the sampled tokens."""
    return len(meta.get(PACKED[OUTPUT], {}).get("log_probs", ""))


def token_log_probs(meta: Mapping[str, Any], name: str) -> TokenLogProbs:
    """`OUTPUT` or `INPUT` of a `meta_info`, however it came; empty where it is not there."""
    if (packed := meta.get(PACKED[name])) is not None:
        return _unpacked(packed)
    rows = meta.get(name) or []
    if isinstance(rows, TokenLogProbs):
        return rows
    return TokenLogProbs(PackedInts([row[1] for row in rows]), _floats([row[0] for row in rows]))


def _loaded(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        begin = body[:200].decode(errors="replace")
        raise EngineError(f"The engine answered {begin!r}, which is no JSON: {error}.") from error


def _parsed_rows(rows: bytes) -> TokenLogProbs:
    """Parse rows of equal length. One flat list is read twice as fast as a list of lists."""
    flat = _loaded(b"[%b]" % rows.translate(None, b"[]"))
    width = rows[: rows.index(b"]")].count(b",") + 1
    return TokenLogProbs(PackedInts(flat[1::width]), _floats(flat[::width]))


def _floats(values: list[Any]) -> PackedFloats:
    """JSON has no NaN, so null stands for it."""
    try:
        return PackedFloats(values)
    except TypeError:
        return PackedFloats([math.nan if value is None else value for value in values])


def _unpacked(packed: Mapping[str, str]) -> TokenLogProbs:
    try:
        ids = PackedInts.from_bytes(binascii.a2b_base64(packed["ids"]))
        log_probs = PackedFloats.from_bytes(binascii.a2b_base64(packed["log_probs"]))
    except ValueError as error:
        raise EngineError(f"The engine gave packed log-probs that cannot be read: {error}.") from error
    if len(ids) != len(log_probs):
        raise EngineError(f"The engine gave {len(log_probs)} log-probs of {len(ids)} tokens.")
    return TokenLogProbs(ids, log_probs)
