"""Seconds and bytes of one publication of weights, for each way and size of model.

Weights are bf16 copies of fp32 ones, which move by a learning rate of 1e-6 from version to version, each by
the full step of Adam: what `delta` sends depends on it. Seconds are from the trained weights to an engine
that has proven that it has them. The first publication of each way is whole, finds nothing in place, and does
not count. The peak is the most memory that a publication takes beside trained weights and engine: of the
process that is trainer and driver here, and of files in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import secrets
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import torch
from common import Row, machine, make_model, parser, publish, say, stored_rows, table
from safetensors.torch import load_file
from torch import Tensor

from rlcore.api.engine import EngineLaunch
from rlcore.api.factory import load
from rlcore.engines.client import EngineClient
from rlcore.engines.engine import Engine
from rlcore.engines.publish import Publisher
from rlcore.engines.publish_file import WeightsLocation
from rlcore.engines.stream import Pieces
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_machine.network import free_port
from rlcore_machine.server_process import ServerProcess
from rlcore_machine.shared_memory import shared_dir
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine
from rlcore_toolkit import StreamPublisher, call_in_thread
from rlcore_toolkit.publishers.broadcast import BroadcastPublisher

LR = 1e-6
BF16 = 2
CONTEXT = 256
VOCAB = 512
COPIES = 6
SAMPLE_S = 0.002
FIRST = {"sends": True, "tells": True}
"""The rank from which engines take weights, and the driver their checksums."""
START_LIMIT_S = 900.0
PYTHON = "RLCORE_SGLANG_PYTHON"
Engines = Callable[[str], Engine]
"""An engine by its way of publication."""
LOCAL = ("shared_memory", "disk", "delta", "broadcast")
BY_HANDLE = "tensor, by handle"
"""As where train worker and engine share a device."""
SGLANG = (BY_HANDLE, "tensor", "disk", "delta", "broadcast")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model by its layers and width."""

    layers: int
    width: int


SIZES = {
    "1M": Size(layers=4, width=128),
    "10M": Size(layers=9, width=256),
    "100M": Size(layers=9, width=832),
    "0.6B": Size(layers=16, width=1536),
}


@dataclass(kw_only=True)
class Weights:
    """What is trained: fp32 masters, of which each step changes every number by at most `LR`."""

    masters: dict[str, Tensor]
    draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def step(self) -> None:
        """One step of Adam, as far as sizes go."""
        for one in self.masters.values():
            signs = torch.randint(0, 2, one.shape, generator=self.draw, dtype=torch.int8)
            one.add_(signs.float().mul_(2).sub_(1), alpha=LR)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """In bf16, as a trainer gives them."""
        return ((name, one.bfloat16()) for name, one in self.masters.items())

    @property
    def count(self) -> int:
        """Parameters."""
        return sum(one.numel() for one in self.masters.values())


@dataclass(frozen=True, kw_only=True)
class Bench:
    """One model on one server, and what its weights become."""

    client: EngineClient
    engine: Engines
    folder: Path
    model: Path
    weights: Weights

    async def row(self, way: str, repeats: int) -> Row:
        """Medians of `repeats` publications, after a first one."""
        publisher = _publisher(self.engine(way), self.folder / way, self.model)
        if way == BY_HANDLE:
            publisher = publisher.feeding(1).beside([0])
        seconds: list[tuple[float, float]] = []
        name, sent, peaks = self.engine(way).name, 0, list[int]()
        for version in range(repeats + 1):
            self.weights.step()
            gc.collect()
            with Peak(self.folder) as peak:
                begin = time.perf_counter()
                location = await asyncio.to_thread(publisher.write, self.weights.tensors(), version)
                written = time.perf_counter()
                sent = await self._load(publisher, location)
                seconds.append((time.perf_counter() - begin, written - begin))
            peaks.append(peak.most)
            say(
                f"{self.weights.count:,} {name} {way}: {seconds[-1][0]:.2f} s, {sent / 1e6:.1f} MB, "
                f"peak {peak.most / 1e6:.1f} MB"
            )
        whole, writing = (statistics.median(values) for values in zip(*seconds[1:], strict=True))
        return {
            "parameters": f"{self.weights.count / 1e6:.1f} M",
            "engine": name,
            "way": way,
            "seconds": whole,
            "of these, writing": writing,
            "MB": sent / 1e6,
            "peak MB": max(peaks[1:]) / 1e6,
        }

    async def _load(self, publisher: Publisher, location: WeightsLocation) -> int:
        """The engine loads it; the bytes that went from trainer to engine."""
        if not isinstance(publisher, StreamPublisher):
            await publisher.load(self.client, location)
            return Path(location.chain[-1] if location.chain else location.file).stat().st_size
        sent = 0

        async def pieces() -> Pieces:
            nonlocal sent
            loop, made = asyncio.get_running_loop(), publisher.pieces(self.weights.tensors(), **FIRST)
            while (piece := await loop.run_in_executor(worker, next, made, None)) is not None:
                piece = replace(piece, by_rank={0: piece.content})
                in_bytes = BF16 * sum(torch.Size(shape).numel() for shape in piece.bucket.shapes)
                sent += 4 * -(-len(piece.content) // 3) if isinstance(piece.content, bytes) else in_bytes
                yield piece

        with ThreadPoolExecutor(1) as worker:  # as in a train worker, one thread has all of the memory
            await publisher.load(self.client, replace(location, pieces=pieces()))
        return sent


class Peak:
    """The most memory of this process, and of files in `folder`, within; less that of the beginning."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ended = folder, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most = 0

    def __enter__(self) -> Peak:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before is not there for free
        self._before = self._now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.most = max(self.most, self._now() - self._before)

    def _now(self) -> int:
        files = 0
        for folder, _, names in os.walk(self._folder):  # it passes over a folder that is gone
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # it has just been removed
                    files += os.stat(os.path.join(folder, name)).st_size
        return psutil.Process().memory_info().rss + files


def _publisher(engine: Engine, root: Path, model: Path) -> Publisher:
    made: Publisher = engine.publisher(weights_dir=str(root), model_path=str(model), dtype="bf16")
    if isinstance(made, BroadcastPublisher):
        sender = made.sender
        made.connect(lambda call, *rest: call_in_thread(lambda: getattr(sender, call)(*rest)))
    return made


async def measured(engines: Engines, ways: Sequence[str], size: Size, args: argparse.Namespace) -> list[Row]:
    """A row for each of `ways`."""
    engine = engines(ways[0])
    path = make_model(args.work / "model", layers=size.layers, width=size.width, vocab=VOCAB)
    weights, token = Weights(masters=load_file(path / "model.safetensors")), secrets.token_urlsafe(16)
    folder = shared_dir("bench", COPIES * BF16 * weights.count)
    launch = EngineLaunch(
        model_path=str(path),
        host="127.0.0.1",
        port=free_port(),
        token=token,
        dtype="bf16",
        context_length=CONTEXT,
        seed=0,
        weights_dir=str(folder),
        log_path=str(args.work / "engine.log"),
        threads=args.threads,
    )
    command, url = engine.command(launch), f"http://{launch.host}:{launch.port}"
    rows: list[Row] = []
    try:
        with ServerProcess(
            command.argv, name=engine.name, log_path=launch.log_path, env=command.env
        ) as server:
            server.wait_ready(f"{url}/health", token=token, limit_s=START_LIMIT_S)
            client_type = load(engine.client, engine.name)
            async with client_type(url, token, control_timeout_s=START_LIMIT_S) as client:
                bench = Bench(client=client, engine=engines, folder=folder, model=path, weights=weights)
                for way in ways:
                    rows.append(await bench.row(way, args.repeats))
                    shutil.rmtree(folder / way, ignore_errors=True)  # room for the next
    finally:
        shutil.rmtree(folder)
    return rows


def main() -> None:
    """Every size on `local`; some on SGLang too, where an interpreter has it."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=3, help="publications that are timed")
    options.add_argument("--bucket-mb", type=int, default=8, help="megabytes of a bucket")
    options.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of models, on `local`"
    )
    options.add_argument(
        "--sglang-sizes", nargs="+", choices=SIZES, default=["10M"], help="of models, on SGLang"
    )
    options.add_argument(
        "--sglang-python",
        default=os.environ.get(PYTHON),
        help=f"interpreter with sglang, or {PYTHON}; none: no SGLang",
    )
    args = options.parse_args()
    facts = machine(args.threads)
    rows: list[Row] = []

    def local(way: str) -> Engine:
        given = {"threads": args.threads, "publish": way, "bucket_mb": args.bucket_mb}
        return LocalEngine(LocalConfig.model_validate(given))

    def sglang(way: str) -> Engine:
        publish = way.partition(",")[0]
        given = {"python": args.sglang_python, "publish": publish, "bucket_mb": args.bucket_mb}
        return SglangEngine(SglangConfig.model_validate(given))

    for name in args.sizes:
        rows += asyncio.run(measured(local, LOCAL, SIZES[name], args))
    for name in args.sglang_sizes if args.sglang_python else ():
        rows += asyncio.run(measured(sglang, SGLANG, SIZES[name], args))
    rows = _with_earlier(rows)
    publish("publication", facts, {"rows": rows, "repeats": args.repeats}, table(rows), dry=args.dry)


def _with_earlier(rows: Sequence[Row]) -> list[Row]:
    """Also the stored rows of what was not measured now; by engine and size."""
    keys = ("parameters", "engine", "way")
    measured_now = {tuple(row[key] for key in keys) for row in rows}
    earlier = [
        row for row in stored_rows("publication") if tuple(row[key] for key in keys) not in measured_now
    ]
    return sorted(
        [*rows, *earlier], key=lambda row: (row["engine"], float(row["parameters"].removesuffix(" M")))
    )


if __name__ == "__main__":
    main()
