"""Real ranks for a test: one process each, gloo between them, and a hard time limit over all."""

import atexit
import contextlib
import functools
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from rlcore.api.part_config import PassingConfig
from rlcore.api.records import Kind
from rlcore.plugins.loader import Switches, load
from rlcore_machine import Forked, ForkServer, compute_threads
from rlcore_machine.network import HeldPort

_servers: list[ForkServer] = []
"""The fork server of a process that has one with the imports of ranks."""


@functools.cache
def _own_server() -> ForkServer:
    server = ForkServer([*preload(Kind.TRAINER), "pytest"])  # which files of ranks import
    atexit.register(server.close)
    return server


@functools.cache
def preload(*kinds: Kind) -> list[str]:
    """What parts of these kinds ask for. A server imports it once: what it forks starts in milliseconds."""
    registry = load(Switches()).registry
    configs = [config for kind in kinds for _, config in registry.configs(kind)]
    return [name for config in configs if issubclass(config, PassingConfig) for name in config.preload]


def run_ranks(fn: Callable[..., Any] | str, n: int, *args: Any, timeout: float = 280.0) -> list[Any]:
    """`fn(rank, n, port, *args)` in `n` processes; their (picklable) results in the order of the ranks.

    `fn` is a function at the top level of a file, or `package.module:function`, which this process then need
    not import; `port` is a loopback port for the rendezvous, which nobody else gets meanwhile. The first rank
    that raises, dies, or the passing of `timeout` seconds ends all ranks; the error (RuntimeError or
    TimeoutError) carries the traceback of the rank.
    """
    server = _servers[0] if _servers else _own_server()
    port, deadline = HeldPort(), time.monotonic() + timeout
    processes: list[Forked] = []
    ends: list[Connection] = []
    said = os.memfd_create("what ranks print")
    try:
        for rank in range(n):
            mine, theirs = multiprocessing.Pipe(duplex=False)
            with theirs, os.fdopen(os.memfd_create("rank"), "wb") as file:
                pickle.dump(sys.path, file)  # comes first: the arguments may be of a module that it leads to
                pickle.dump((*_where(fn), (rank, n, port.number, *args)), file)
                file.flush()
                out, given = Path(f"/proc/{os.getpid()}/fd/{said}"), (file.fileno(), theirs.fileno())
                processes.append(server.fork(f"{__name__}:_rank_main", (), given, env=os.environ, out=out))
            ends.append(mine)
        return _collect(ends, deadline)
    finally:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, min(5.0, deadline - time.monotonic())))
            process.kill()
        port.close()
        with os.fdopen(said, "rb") as file:
            file.seek(0)
            sys.stderr.write(file.read().decode(errors="replace"))


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


def _rank_main(call: int, end: int) -> None:
    ForkServer.current = None  # a rank starts what it starts as a worker does that nobody forked
    compute_threads(1)  # the ranks share the machine's few cores
    try:
        with open(call, "rb") as file:
            file.seek(0)
            sys.path[:] = pickle.load(file)
            place, name, arguments = pickle.load(file)
        answer = (True, getattr(_load(place), name)(*arguments))
    except BaseException:
        answer = (False, traceback.format_exc())
    # Pickle between a process and its own child. `Connection.send` would share the memory of tensors instead
    # of copying them, and this process ends.
    with Connection(end, readable=False) as connection:
        connection.send_bytes(pickle.dumps(answer))


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
