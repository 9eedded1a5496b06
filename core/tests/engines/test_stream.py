"""Weights bucket by bucket: engines take each together, whoever leaves, and few are there at once."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlcore import Bucket, EngineError, Piece, checksum
from rlcore.engines.stream import Pieces, WeightStream
from rlcore_testing.activations import MadeBytes
from rlcore_toolkit import publisher_of
from rlcore_toolkit.publishers.shared_memory import SharedMemoryPublisher
from rlcore_toolkit.publishers.stream import StreamPublisher

LIMIT_S = 30.0
COUNT = 4


def piece(number: int) -> Piece:
    bucket = Bucket(names=(str(number),), dtypes=(), shapes=())
    return Piece(bucket=bucket, is_last=number == COUNT - 1)


class Source:
    """Makes pieces, and notes how many were asked for; the one of `fault` fails."""

    def __init__(self, fault: int | None = None) -> None:
        self.made = 0
        self.fault = fault
        self.closed = 0
        self.ranks: list[tuple[int, ...]] = []

    async def pieces(self, ranks: Sequence[int]) -> Pieces:
        self.ranks.append(tuple(ranks))
        try:
            for number in range(COUNT):
                if number == self.fault:
                    raise EngineError("the trainer has died")
                self.made += 1
                yield piece(number)
        finally:
            self.closed += 1


async def names(pieces: AsyncIterator[Piece]) -> list[str]:
    return [one.bucket.names[0] async for one in pieces]


async def test_a_piece_is_made_when_all_have_asked_for_it() -> None:
    source = Source()
    stream = WeightStream(source.pieces, 2)
    slow = stream.share()
    await asyncio.sleep(0.01)
    made = [source.made]
    fast = stream.share()
    await asyncio.sleep(0.01)
    assert [*made, source.made] == [0, 1], "the first one while the engines get ready"
    ahead, behind = aiter(fast.pieces()), aiter(slow.pieces())
    waiting = asyncio.ensure_future(anext(ahead))
    for number in range(COUNT):
        await asyncio.sleep(0.01)
        assert source.made == max(number, 1)
        assert waiting.done() == (number == 0)
        assert (await anext(behind)).bucket.names == (await waiting).bucket.names == (str(number),)
        waiting = asyncio.ensure_future(anext(ahead))
    for end in (anext(behind), waiting):
        with pytest.raises(StopAsyncIteration):
            await end
    await asyncio.sleep(0.01)
    assert source.closed == 1, "while the engines check what they have"
    assert await names(stream.alone()) == ["0", "1", "2", "3"]
    assert await names(stream.alone((1,))) == ["0", "1", "2", "3"]
    assert source.ranks == [(), (), (1,)]
    slow.close()
    fast.close()
    await stream.close()
    assert source.closed == 3


@pytest.mark.parametrize("taken", [0, 1, 3])
async def test_nobody_waits_for_one_that_has_left(taken: int) -> None:
    """Not even for one that never took a piece, or that leaves while the next one is waited for."""
    source = Source()
    stream = WeightStream(source.pieces, 3)
    shares = [stream.share() for _ in range(3)]
    whole = asyncio.ensure_future(names(shares[0].pieces()))
    leaving = [aiter(share.pieces()) for share in shares[1:]]
    async with asyncio.timeout(LIMIT_S):
        for _ in range(taken):
            await asyncio.gather(*(anext(one) for one in leaving))
        shares[1].close()
        waiting = asyncio.ensure_future(anext(leaving[1]))
        await asyncio.sleep(0.01)
        shares[2].close()
        waiting.cancel()
        assert await whole == ["0", "1", "2", "3"]
        shares[0].close()
        await stream.close()
    assert source.closed == 1


async def test_all_hear_why_there_are_no_more() -> None:
    stream = WeightStream(Source(fault=2).pieces, 2)
    shares = [stream.share() for _ in range(2)]
    found = await asyncio.gather(*(names(one.pieces()) for one in shares), return_exceptions=True)
    assert [str(error) for error in found] == ["the trainer has died"] * 2
    for share in shares:
        share.close()
    await stream.close()


def many(count: int) -> Iterator[tuple[str, Tensor]]:
    """As a trainer gives them: each is made when it is asked for."""
    for number in range(count):
        yield f"layer.{number}", torch.full((1000,), float(number))


def test_a_bucket_in_memory_is_all_that_there_is(tmp_path: Path) -> None:
    publisher = SharedMemoryPublisher(root=tmp_path, dtype="bf16", bucket_bytes=4_000)
    seen: dict[str, Any] = {}
    for one in publisher.pieces(many(40), sends=True, tells=True):
        file, layout = one.content
        held = load_file(file)
        assert Path(file).stat().st_size < 5_000, "one bucket of bf16"
        assert [name for name, *_ in layout] == list(held)
        assert one.checksums == {name: checksum(value) for name, value in held.items()}
        seen |= {name: float(value[0]) for name, value in held.items()}
    assert seen == {f"layer.{number}": float(number) for number in range(40)}
    assert not list(tmp_path.iterdir()), "nothing stays behind"


@pytest.mark.parametrize("sends", [True, False], ids=["sends", "gathers only"])
@pytest.mark.parametrize("way", ["shared_memory", "broadcast"])
def test_no_rank_ever_holds_a_whole_copy(tmp_path: Path, way: str, sends: bool) -> None:
    """However many layers there are, a rank has the tensors of three buckets at most, and a bucket."""
    publisher = publisher_of(
        way, tmp_path, tmp_path, "bf16", bucket_mb=0, limit_s=LIMIT_S, on_gpu=False, checks=True
    )
    assert isinstance(publisher, StreamPublisher)
    publisher = replace(publisher, bucket_bytes=4_000)
    peaks = []
    for count in (20, 100):
        made = MadeBytes()
        with made:
            for _ in publisher.pieces(many(count), sends=sends, tells=True):
                pass
        peaks.append(made.peak)
    assert peaks[0] == peaks[1] <= 3 * 2 * 4_000 + 4_000
