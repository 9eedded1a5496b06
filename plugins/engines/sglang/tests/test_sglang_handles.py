"""Weights by handle: other processes read the trainer's own memory, and whoever dies leaves none behind."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from command import wait_for
from torch import Tensor

from rlcore import EngineError, checksum
from rlcore_sglang import shared_bucket
from rlcore_sglang.publish import TensorPublisher
from rlcore_sglang.testing.payload_reader import PayloadReader

ELEMENTS = 250_000
BUCKET_BYTES = 4 * ELEMENTS * 2
LIMIT_S = 60.0


def weights(count: int = 6) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    named = {f"layer.{number}": torch.randn(500, 500, generator=generator) for number in range(count)}
    return {**named, "norm": torch.randn(7, generator=generator)}


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PayloadReader, PayloadReader]]:
    """Two, which no test ends: each takes seconds to import torch."""
    made = PayloadReader(), PayloadReader()
    yield made
    for one in made:
        one.kill()


@pytest.fixture
def doomed() -> Iterator[PayloadReader]:
    """One that a test ends."""
    made = PayloadReader()
    yield made
    made.kill()


@pytest.fixture
def publisher(tmp_path: Path) -> TensorPublisher:
    """Of a train worker with two ranks of engines on its device."""
    return TensorPublisher(root=tmp_path, dtype="fp32", bucket_bytes=BUCKET_BYTES, checks=False).feeding(2)


def file_of(publisher: TensorPublisher) -> Path:
    file = publisher.shared._file
    assert file is not None, "there is a bucket"
    return file


@pytest.mark.full
def test_servers_read_the_trainers_memory(
    servers: tuple[PayloadReader, PayloadReader], publisher: TensorPublisher
) -> None:
    """In the order of the buckets, and nothing but names goes along with a handle."""
    named, order, files = weights(), list[str](), set[Path]()
    for piece in publisher.pieces(named.items(), sends=True, tells=True):
        assert len(piece.content) < 1500
        answers = [one.take(piece.content) for one in servers]
        assert answers[0] == answers[1] == {name: checksum(named[name]) for name in piece.bucket.names}
        order += piece.bucket.names
        files.add(file_of(publisher))
    assert order == list(named)
    [file] = files
    assert not file.exists(), "the memory goes with the publication"


def test_a_bucket_stays_until_the_next_is_asked_for(
    servers: tuple[PayloadReader, PayloadReader], publisher: TensorPublisher
) -> None:
    """A slow server reads what the fast one has read, and there is memory for one bucket."""
    named = weights()
    for piece in publisher.pieces(named.items(), sends=True, tells=True):
        wanted = {name: checksum(named[name]) for name in piece.bucket.names}
        assert servers[0].take(piece.content) == wanted
        size = file_of(publisher).stat().st_size
        assert BUCKET_BYTES <= size < 1.01 * BUCKET_BYTES
        assert servers[1].take(piece.content) == wanted


def test_a_larger_tensor_gets_larger_memory(
    servers: tuple[PayloadReader, PayloadReader], publisher: TensorPublisher
) -> None:
    named = {**weights(3), "embedding": torch.ones(BUCKET_BYTES // 2), "last": torch.zeros(3)}
    files = set()
    for piece in publisher.pieces(named.items(), sends=True, tells=True):
        for one in servers:
            assert one.take(piece.content) == {name: checksum(named[name]) for name in piece.bucket.names}
        files.add(file_of(publisher))
    assert len(files) == 2
    assert not any(file.exists() for file in files)


def test_a_server_that_dies_in_the_middle_leaves_no_memory(
    servers: tuple[PayloadReader, PayloadReader], doomed: PayloadReader, publisher: TensorPublisher
) -> None:
    """It has the second bucket open. The other server gets all buckets, and so does a new one."""
    named = weights()
    for number, piece in enumerate(publisher.pieces(named.items(), sends=True, tells=True)):
        wanted = {name: checksum(named[name]) for name in piece.bucket.names}
        if number <= 1:
            assert doomed.take(piece.content, keeps=number == 1) == wanted
        if number == 1:
            doomed.kill()
        assert servers[1].take(piece.content) == wanted
        file = file_of(publisher)
    assert not file.exists()
    for piece in publisher.pieces(named.items(), sends=True, tells=True):  # what a replacement takes alone
        assert servers[1].take(piece.content) == {name: checksum(named[name]) for name in piece.bucket.names}


TRAINER = """
import sys
from pathlib import Path
import torch
from rlcore_sglang.publish import TensorPublisher
from rlcore_sglang.testing.payload_reader import PayloadReader
publisher = TensorPublisher(root=Path("."), dtype="fp32", bucket_bytes=1000).feeding(1)
pieces = publisher.pieces([("a", torch.ones(300)), ("b", torch.ones(300))], sends=True, tells=True)
print(next(pieces).content.hex(), publisher.shared._file, flush=True)
sys.stdin.read()
"""


@pytest.mark.full
def test_a_trainer_that_is_killed_leaves_no_memory(doomed: PayloadReader, tmp_path: Path) -> None:
    """torch's own process, which outlives it, removes the file when nobody has it open."""
    trainer = psutil.Popen(
        [sys.executable, "-c", TRAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    )
    payload, file = trainer.stdout.readline().decode().split()
    assert doomed.take(bytes.fromhex(payload), keeps=True) == {"a": checksum(torch.ones(300))}
    assert Path(file).exists()
    trainer.kill()
    trainer.communicate()
    doomed.kill()
    wait_for(lambda: not Path(file).exists(), LIMIT_S)


def test_a_worker_sends_by_value_where_nobody_is_beside_it(publisher: TensorPublisher) -> None:
    by_value = publisher.feeding(0)
    [first, *_] = by_value.pieces(weights().items(), sends=True, tells=True)
    assert len(first.content) > BUCKET_BYTES
    assert by_value.shared._file is None


def test_no_room_is_said(publisher: TensorPublisher, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: torch.UntypedStorage) -> None:
        raise RuntimeError("unable to allocate shared memory(shm): No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_filename_cpu_", full)
    with pytest.raises(EngineError, match=f"cannot be put into {shared_bucket.SHARED_MEMORY}: unable to"):
        next(publisher.pieces(weights().items(), sends=True, tells=True))
