"""Real ranks for a test: one process each, gloo between them, and a hard time limit over all."""

import functools
import importlib
import importlib.util
import multiprocessing
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from rlcore.api.part_config import PassingConfig
from rlcore.api.records import Kind
from rlcore.plugins.loader import Switches, load
from rlcore_machine.network import free_port


@functools.cache
def preload(*kinds: Kind) -> list[str]:
    """What parts of these kinds ask for. A server imports it once: what it forks starts in milliseconds."""
    registry = load(Switches()).registry
    configs = [entry.config for kind in kinds for entry in registry.entries(kind)]
    return [name for config in configs if issubclass(config, PassingConfig) for name in config.preload]


def run_ranks(fn: Callable[..., Any] | str, n: int, *args: Any, timeout: float = 280.0) -> list[Any]:
    """`fn(rank, n, port, *args)` in `n` processes; their (picklable) results in the order of the ranks.

    `fn` is a function at the top level of a file, or `package.module:function`, which this process then need
    not import; `port` is a free loopback port for the rendezvous. The
    first rank that raises, dies, or the passing of `timeout` seconds ends all ranks; the error (RuntimeError
    or TimeoutError) carries the traceback of the rank.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(preload(Kind.TRAINER))
    port, deadline = free_port(), time.monotonic() + timeout
    processes: list[BaseProcess] = []
    ends: list[Connection] = []
    try:
        for rank in range(n):
            mine, theirs = context.Pipe(duplex=False)
            call = (*_where(fn), (rank, n, port, *args))
            process: BaseProcess = context.Process(target=_rank_main, args=(theirs, *call), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            ends.append(mine)
        return _collect(ends, deadline)
    finally:
        for process in processes:
            process.join(timeout=max(0.0, min(5.0, deadline - time.monotonic())))
            if process.is_alive():
                process.kill()
                process.join()


def _where(fn: Callable[..., Any] | str) -> tuple[str, str]:
    """The file or module of a function, and its name there."""
    if isinstance(fn, str):
        module, _, name = fn.partition(":")
        return module, name
    return fn.__code__.co_filename, fn.__qualname__


def _collect(ends: Sequence[Connection], deadline: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ends):
        waiting = {end: rank for rank, end in enumerate(ends) if rank not in results}
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} did not answer in time")
        for end in ready:
            assert isinstance(end, Connection)
            rank = waiting[end]
            try:
                succeeded, value = pickle.loads(end.recv_bytes())
            except EOFError:
                raise RuntimeError(f"rank {rank} died without a word") from None
            if not succeeded:
                last = value.strip().splitlines()[-1]
                raise RuntimeError(f"rank {rank} failed: {last}\n\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(ends))]


def _rank_main(end: Connection, place: str, name: str, call: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)  # the ranks share the machine's few cores
    try:
        module = _load(place)
        answer = (True, getattr(module, name)(*call))
    except BaseException:
        answer = (False, traceback.format_exc())
    # Pickle between a process and its own child. `end.send` would share the memory of tensors instead of
    # copying them, and this process ends.
    end.send_bytes(pickle.dumps(answer))
    end.close()


def _load(place: str) -> ModuleType:
    """A module by its name, or a test file, which is no module that a fresh process could import by name."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location("rank_functions", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rank_functions"] = module
    spec.loader.exec_module(module)
    return module
