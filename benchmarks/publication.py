"""Seconds and bytes of one publication of weights, for each way and size of model.

Weights are bf16 copies of fp32 ones, which move by a learning rate of 1e-6 from version to version, each by
the full step of Adam: what `delta` sends depends on it. Seconds are from the trained weights to an engine
that has proven that it has them. The first publication of each way is whole, finds nothing in place, and does
not count.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from common import Row, machine, make_model, parser, publish, say, table
from safetensors.torch import load_file
from torch import Tensor

from rlcore.api.engine import Engine, EngineLaunch
from rlcore.blocking import call_in_thread
from rlcore.engines.broadcast import BroadcastPublisher
from rlcore.engines.client import EngineClient
from rlcore.engines.process import ServerProcess
from rlcore.engines.publish import Publisher
from rlcore.engines.publish_file import WeightsLocation, shared_dir
from rlcore.network import free_port
from rlcore_local.config import LocalConfig
from rlcore_local.engine import LocalEngine
from rlcore_sglang import bucket as sglang_bucket
from rlcore_sglang.config import SglangConfig
from rlcore_sglang.engine import SglangEngine
from rlcore_sglang.publish import TensorPublisher

LR = 1e-6
BF16 = 2
CONTEXT = 256
VOCAB = 512
COPIES = 6
START_LIMIT_S = 900.0
PYTHON = "RLCORE_SGLANG_PYTHON"
Engines = Callable[[str], Engine]
"""An engine by its way of publication."""
LOCAL = ("shared_memory", "disk", "delta", "broadcast")
SGLANG = ("tensor", "disk", "delta", "broadcast")


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
        seconds: list[tuple[float, float]] = []
        name, sent = self.engine(way).name, 0
        for version in range(repeats + 1):
            self.weights.step()
            begin = time.perf_counter()
            location = await asyncio.to_thread(publisher.write, self.weights.tensors(), version)
            written = time.perf_counter()
            await publisher.load(self.client, location)
            seconds.append((time.perf_counter() - begin, written - begin))
            sent = _sent_bytes(publisher, location)
            say(f"{self.weights.count:,} {name} {way}: {seconds[-1][0]:.2f} s, {sent / 1e6:.1f} MB")
        whole, writing = (statistics.median(values) for values in zip(*seconds[1:], strict=True))
        return {
            "parameters": f"{self.weights.count / 1e6:.1f} M",
            "engine": name,
            "way": way,
            "seconds": whole,
            "of these, writing": writing,
            "MB": sent / 1e6,
        }


def _publisher(engine: Engine, root: Path, model: Path) -> Publisher:
    made: Publisher = engine.publisher(weights_dir=str(root), model_path=str(model), dtype="bf16")
    if isinstance(made, BroadcastPublisher):
        sender = made.sender
        made.connect(lambda call, *rest: call_in_thread(lambda: getattr(sender, call)(*rest)))
    return made


def _sent_bytes(publisher: Publisher, location: WeightsLocation) -> int:
    """What goes from trainer to engine."""
    if isinstance(publisher, TensorPublisher):
        return sum(len(one) for one in sglang_bucket.payloads(location.file, publisher.bucket_bytes))
    if location.chain:
        return Path(location.chain[-1]).stat().st_size
    if location.buckets:
        return sum(BF16 * torch.Size(shape).numel() for one in location.buckets for shape in one.shapes)
    return Path(location.file).stat().st_size


async def measured(engines: Engines, ways: Sequence[str], size: Size, args: argparse.Namespace) -> list[Row]:
    """A row for each of `ways`."""
    engine = engines(ways[0])
    path = make_model(args.work / "model", layers=size.layers, width=size.width, vocab=VOCAB)
    weights, token = Weights(masters=load_file(path / "model.safetensors")), secrets.token_urlsafe(16)
    folder = shared_dir("bench", size_bytes=2 * weights.count, copies=COPIES)
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
            async with EngineClient(url, token, control_timeout_s=START_LIMIT_S) as client:
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
        return LocalEngine(LocalConfig.model_validate({"threads": args.threads, "publish": way}))

    def sglang(way: str) -> Engine:
        return SglangEngine(SglangConfig.model_validate({"python": args.sglang_python, "publish": way}))

    for name in args.sizes:
        rows += asyncio.run(measured(local, LOCAL, SIZES[name], args))
    for name in args.sglang_sizes if args.sglang_python else ():
        rows += asyncio.run(measured(sglang, SGLANG, SIZES[name], args))
    publish("publication", facts, {"rows": rows, "repeats": args.repeats}, table(rows), dry=args.dry)


if __name__ == "__main__":
    main()
