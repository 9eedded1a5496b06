"""Weights by handle to real SGLang servers: what goes over HTTP, and a server that dies in the middle."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from rlcore.api.part import Part
from rlcore.engines.lifecycle import Health, Spares
from rlcore.engines.publish import verify_by_reload
from rlcore.engines.stream import Pieces, WeightStream
from rlcore.engines.supervised_engine import SupervisedEngine
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.publish import TensorPublisher
from rlcore_testing.engine_server import HereLauncher
from rlcore_toolkit import write_version

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1800)]

PYTHON = "RLCORE_SGLANG_PYTHON"
LIMIT_S = 900.0
BUCKET_BYTES = 100_000


def engine(number: int, model: Path, folder: Path, publisher: TensorPublisher) -> Any:
    """An engine that takes weights from the train rank of its own number, and its launcher."""
    assert PYTHON in os.environ, f"{PYTHON} must name the interpreter that has sglang (`make test-sglang`)"
    config = SglangConfig(python=os.environ[PYTHON], publish="tensor")
    part = Part(name="sglang", factory="rlcore_sglang.engine:SglangEngine", config=config)
    folder.mkdir()
    launcher = HereLauncher(part, model, folder)
    health, spares = Health(every_s=600.0, limit_s=60.0), Spares(limit=1)
    mine = publisher.beside([number])
    return SupervisedEngine(f"Engine {number}", launcher, mine, health=health, spares=spares), launcher


async def test_a_server_is_killed_in_the_middle(tiny_models: tuple[Path, Path], tmp_path: Path) -> None:
    """The other one gets every bucket, and the replacement gets all from the rank beside it alone."""
    new = load_file(tiny_models[1] / "model.safetensors")
    base = TensorPublisher(root=tmp_path, dtype="fp32", bucket_bytes=BUCKET_BYTES, checks=False)
    ranks = [base.feeding(1), base.feeding(1)]
    made = [engine(number, tiny_models[0], tmp_path / str(number), base) for number in range(2)]
    engines, launchers = zip(*made, strict=True)
    asked: list[tuple[int, ...]] = []
    sent: list[int] = []

    async def source(only: Sequence[int]) -> Pieces:
        asked.append(tuple(only))
        senders = list(only) or [0, 1]
        each = [ranks[rank].pieces(new.items(), sends=True, tells=True) for rank in senders]
        for number, pieces in enumerate(zip(*each, strict=True)):
            if number == 2 and not only:
                for process in launchers[0].processes():
                    process.send_signal(signal.SIGKILL)
            sent.extend(len(piece.content) for piece in pieces)
            contents = {rank: piece.content for rank, piece in zip(senders, pieces, strict=True)}
            yield replace(pieces[0], by_rank=contents)

    location = base.write((), 5)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(one.lifecycle.start() for one in engines))
        stream = WeightStream(source, 2)
        await asyncio.gather(*(one.load(replace(location, stream=stream)) for one in engines))
        await stream.close()
        assert [one.starts for one in launchers] == [2, 1]
        assert asked == [(), (0,)]
        assert max(sent) < 3000, "names and handles"
        whole = write_version(tmp_path, new.items(), 5, dtype="fp32")
        for one in engines:
            assert await one.requests.weight_version() == 5
            await one.check(lambda client: verify_by_reload(base, client, whole, tiny_models[0]))
        await asyncio.gather(*(one.lifecycle.stop() for one in engines))
    assert not list(Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))
