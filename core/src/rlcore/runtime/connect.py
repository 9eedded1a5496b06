"""`opened`: the cluster that `--cluster` names, from its preparation to its end."""

import contextlib
from collections.abc import Iterator, Sequence

from rlcore.api.cluster import Cluster
from rlcore.api.part import Part
from rlcore.api.part_config import ClusterConfig, PassingConfig
from rlcore_machine.reaper import Reaper

PRELOAD = ("rlcore.workers.train_worker", "rlcore.learning.learner", "rlcore_machine.server_process")
"""Modules that the processes of every run import."""


@contextlib.contextmanager
def opened(
    part: Part[ClusterConfig], parts: Sequence[Part[PassingConfig]]
) -> Iterator[tuple[Cluster, Reaper]]:
    """The cluster of `part`, which meanwhile may import what `parts` need; `connect` makes it ready.

    At the end everything is stopped, and the reaper ends what is left.
    """
    modules = [name for needing in parts for name in needing.config.preload]
    cluster: Cluster = part.build()
    with contextlib.closing(Reaper()) as reaper, contextlib.closing(cluster):
        cluster.prepare([*PRELOAD, *modules])
        yield cluster, reaper


def connect(cluster: Cluster, reaper: Reaper, *, cpus: int) -> None:
    """Make the cluster ready for a run that reserves `cpus`. The first processes of the run start here."""
    import torch

    reaper.start()
    cluster.connect(cpus=cpus, gpus=torch.cuda.device_count(), remove=reaper.remove)
