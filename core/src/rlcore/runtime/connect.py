"""`connect`: the cluster that `--ray-address` names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rlcore.api.errors import ConfigError
from rlcore.fork_server import ForkServer
from rlcore.runtime.process_cluster import NO_RAY, ProcessCluster
from rlcore.runtime.reaper import Reaper

if TYPE_CHECKING:
    from rlcore.api.part import Part
    from rlcore.api.part_config import PassingConfig
    from rlcore.runtime.cluster import Cluster

PRELOAD = ("rlcore.runtime.worker", "rlcore.learning.learner", "rlcore.engines.process")
"""Modules that the processes of every run import."""


@contextlib.contextmanager
def connect(
    address: str | None, *, gpus: int, parts: Sequence[Part[PassingConfig]]
) -> Iterator[Callable[[int], Cluster]]:
    """A function that makes the cluster. Call it with the number of CPUs that a cluster of the run's needs.

    `address`: of a Ray cluster; None: one for this run; `none`: processes without Ray, which meanwhile import
    what `parts` need. `gpus`: of this machine. At the end everything is stopped.
    """
    with contextlib.ExitStack() as stack:
        if address == NO_RAY:
            yield _processes(stack, gpus, parts)
        else:
            yield lambda cpus: _ray(stack, address, cpus, gpus)


def _processes(
    stack: contextlib.ExitStack, gpus: int, parts: Sequence[Part[PassingConfig]]
) -> Callable[[int], Cluster]:
    if sys.platform != "linux":
        raise ConfigError("--ray-address none works on Linux only: leave it out, and Ray starts them.")
    modules = [name for part in parts for name in part.config.preload]
    reaper = stack.enter_context(contextlib.closing(Reaper()))
    server = stack.enter_context(ForkServer([*PRELOAD, *modules]))
    return lambda cpus: ProcessCluster(server, gpus, reaper)


def _ray(stack: contextlib.ExitStack, address: str | None, cpus: int, gpus: int) -> Cluster:
    from rlcore.runtime.ray_cluster import connect_ray

    reaper = stack.enter_context(contextlib.closing(Reaper()))
    return stack.enter_context(connect_ray(address, cpus=cpus, gpus=gpus, reaper=reaper))
