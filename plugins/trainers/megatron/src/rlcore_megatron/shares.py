"""A conversion as shares, one a process: each has its own tensors and files, and none waits for another."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from rlcore import ConversionReport, ModelSpec, PluginFile, RlcoreError, RunError, install_plugin_files
from rlcore_machine import compute_threads
from rlcore_megatron.config import MegatronConfig
from rlcore_megatron.mcore import parallel

if TYPE_CHECKING:
    from rlcore_megatron.mcore.checkpoint.streaming import Shape
    from rlcore_megatron.mcore.checkpoint.torch_dist_stream import Written
    from rlcore_toolkit import SafetensorsShard

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Done:
    """What one share wrote. `written`: of a checkpoint, what completes it."""

    report: ConversionReport
    written: Written | None = None


class Job(Protocol):
    """A conversion that can be divided; it travels to other processes."""

    spec: ModelSpec

    def run(self, shape: Shape, rank: int, ranks: int, advance: Callable[[int], None]) -> Done:
        """Write share `rank` of `ranks`; `shape`, the model of `spec`, is its own. `advance`: bytes done."""


@dataclass(frozen=True, kw_only=True)
class ToHf(Job):
    """The weights of the checkpoint `weights` as safetensors in `folder`; a share is some of `shards`."""

    spec: ModelSpec
    weights: Path
    folder: Path
    shards: Sequence[SafetensorsShard]

    def run(self, shape: Shape, rank: int, ranks: int, advance: Callable[[int], None]) -> Done:
        from rlcore_toolkit import write_shards

        mine = share(self.shards, [shard.nbytes for shard in self.shards], rank, ranks)
        coming = {entry.name for shard in mine for entry in shard.entries}
        shape.keep({name for name, entry in shape.plan() if entry.name in coming})
        return Done(report=write_shards(self.folder, mine, shape.export(self.weights), advance))


@dataclass(frozen=True, kw_only=True)
class ToDist(Job):
    """The weights of a Hugging Face directory as a checkpoint in `folder`; a share is some of its tensors.

    `piece_bytes`: of a layer's experts, what is written at once.
    """

    spec: ModelSpec
    folder: Path
    piece_bytes: int

    def run(self, shape: Shape, rank: int, ranks: int, advance: Callable[[int], None]) -> Done:
        report = ConversionReport()
        shape.keep(share(list(shape.sizes), list(shape.sizes.values()), rank, ranks))
        written = shape.load_into(self.folder, report, advance, rank, self.piece_bytes)
        return Done(report=report, written=written)


def share(items: Sequence[T], sizes: Sequence[int], rank: int, ranks: int) -> list[T]:
    """The items of share `rank`: a run of them, about as large as those of the others."""
    total = sum(sizes)
    ends = itertools.accumulate(sizes)
    # By its middle an item falls into one share, and into one only.
    middles = (end - size / 2 for end, size in zip(ends, sizes, strict=True))
    return [item for item, middle in zip(items, middles, strict=True) if int(middle * ranks / total) == rank]


def run_shares(
    job: Job,
    shape: Shape,
    ranks: int,
    advance: Callable[[int], None],
    plugin_files: Sequence[PluginFile] = (),
) -> list[Done]:
    """Every share of `job`, a process each where there are several; `shape` is the model of `job.spec`.

    `plugin_files`: those that the processes need for the model's bridge. The first process that fails ends
    all. What it raises is raised here; RunError where one dies.
    """
    if ranks == 1:
        return [job.run(shape, 0, 1, advance)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(MegatronConfig.preload))  # once, not in each share
    processes: dict[Connection, ForkServerProcess] = {}
    try:
        for rank in range(ranks):
            ours, process = _start(context, plugin_files, job, rank, ranks)
            processes[ours] = process
        results = _collect(processes, advance)
        return [results[ours] for ours in processes]
    finally:
        for process in processes.values():
            process.kill()  # one that is done has nothing left to do
        for process in processes.values():
            process.join()


def _start(
    context: ForkServerContext, plugin_files: Sequence[PluginFile], job: Job, rank: int, ranks: int
) -> tuple[Connection, ForkServerProcess]:
    ours, theirs = context.Pipe(duplex=False)
    # The job by itself: a plugin file's classes in it can be unpickled once the file is installed there.
    args = (theirs, tuple(plugin_files), pickle.dumps(job), rank, ranks)
    process = context.Process(target=_main, args=args, daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _collect(
    processes: dict[Connection, ForkServerProcess], advance: Callable[[int], None]
) -> dict[Connection, Done]:
    """What each process ends with. Before it they send the bytes that they have done."""
    results: dict[Connection, Done] = {}
    while len(results) < len(processes):
        for end in wait([end for end in processes if end not in results]):
            assert isinstance(end, Connection)
            try:
                message = end.recv()
            except EOFError:
                processes[end].join()
                raise RunError(
                    "A process of the conversion ended early, with exit code "
                    f"{processes[end].exitcode} (-9: killed, mostly for want of memory; use fewer --ranks)."
                ) from None
            if isinstance(message, Exception):
                raise message
            if isinstance(message, Done):
                results[end] = message
            else:
                advance(message)
    return results


def _main(end: Connection, plugin_files: Sequence[PluginFile], pickled: bytes, rank: int, ranks: int) -> None:
    """A process: when its parent is gone, its next word finds nobody and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to all; the parent stops its own
    outcome: Done | Exception
    try:
        with one_rank():
            from rlcore_megatron.mcore.checkpoint.streaming import Shape

            install_plugin_files(plugin_files)
            job: Job = pickle.loads(pickled)
            compute_threads(max(1, (os.cpu_count() or 1) // ranks))
            outcome = job.run(Shape.of(job.spec), rank, ranks, end.send)
    except BrokenPipeError:
        return
    except RlcoreError as error:
        outcome = error
    except Exception:
        outcome = RunError(f"A process of the conversion failed:\n{traceback.format_exc()}")
    end.send(outcome)


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    from rlcore_megatron import cpu

    cpu.install()

    parallel.start(0, 1, "127.0.0.1", 0)
    try:
        yield
    finally:
        parallel.stop()
