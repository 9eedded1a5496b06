"""A trainer's broadcast to an engine's ranks: the bytes, the buckets, and peers that do not come."""

import threading

import pytest
import torch
from torch import Tensor

from rlcore import Bucket, EngineError
from rlcore_toolkit.publishers.broadcast_group import BroadcastGroup, BroadcastSender
from rlcore_toolkit.publishers.bucket import bucket_of, bucketed, flatten_tensors

HOST = "127.0.0.1"
LIMIT_S = 60.0


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "half": torch.randn(3, 5, generator=generator).bfloat16(),
        "single": torch.randn(7, generator=generator),
        "turned": torch.randn(4, 6, generator=generator).t(),
        "large": torch.randn(40, generator=generator),
    }


def runs(limit: int) -> list[list[tuple[str, Tensor]]]:
    return list(bucketed(tensors().items(), lambda _, tensor: tensor.nbytes, limit))


def test_buckets_keep_the_order_and_a_large_tensor_is_alone() -> None:
    found = [bucket_of(run) for run in runs(130)]
    assert [one.names for one in found] == [("half", "single"), ("turned",), ("large",)]
    assert found[0] == Bucket(names=("half", "single"), dtypes=("bfloat16", "float32"), shapes=((3, 5), (7,)))
    assert [bucket_of(run).names for run in runs(10**6)] == [tuple(tensors())]


class Receiver(threading.Thread):
    """An engine's rank: takes `sizes` bytes, one broadcast after the other."""

    def __init__(self, name: str, port: int, rank: int, size: int, sizes: list[int]) -> None:
        super().__init__(daemon=True)
        self._group_name, self._port, self._rank, self._size, self._sizes = name, port, rank, size, sizes
        self.found: list[Tensor] = []

    def run(self) -> None:
        group = BroadcastGroup(
            self._group_name,
            HOST,
            self._port,
            rank=self._rank,
            size=self._size,
            backend="gloo",
            limit_s=LIMIT_S,
        )
        for size in self._sizes:
            self.found.append(torch.empty(size, dtype=torch.uint8))
            group.broadcast(self.found[-1])


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_of_an_engine_gets_every_bucket(ranks: int) -> None:
    sender = BroadcastSender()
    whole = [flatten_tensors(tensor for _, tensor in run) for run in runs(130)]
    host, port = sender.open("g", "localhost")
    assert host == HOST
    sizes = [one.numel() for one in whole]
    engine = [Receiver("g", port, 1 + rank, 1 + ranks, sizes) for rank in range(ranks)]
    for one in engine:
        one.start()
    sender.join("g", 1 + ranks, "gloo", LIMIT_S)
    for bucket in whole:
        sender.hold(bucket)
        sender.send("g")
    for one in engine:
        one.join(LIMIT_S)
        assert all(torch.equal(got, sent) for got, sent in zip(one.found, whole, strict=True))
    sender.hold(None)
    with pytest.raises(EngineError, match="has no bucket of weights"):
        sender.send("g")
    sender.close("g")
    with pytest.raises(KeyError):
        sender.send("g")


def test_an_engine_that_does_not_come_is_told_in_time() -> None:
    sender = BroadcastSender()
    sender.open("lonely", HOST)
    with pytest.raises(EngineError, match="group lonely of trainer and engine failed: "):
        sender.join("lonely", 2, "gloo", 1.0)
