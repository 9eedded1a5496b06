"""The cluster `my_plugin`.

It derives from an installed cluster, and changes how much of the machine a run has. A cluster on other hosts
implements the methods of `rlcore.Cluster` and `rlcore.Actor` itself: rlcore's page on clusters says when each
is called.
"""

from collections.abc import Callable
from pathlib import Path

from rlcore_processes.cluster import ProcessCluster

from rlcore_my_plugin.config import MyPluginConfig


class MyPlugin(ProcessCluster):
    """`processes` on the first GPUs, so that the last ones are free for others."""

    def __init__(self, config: MyPluginConfig) -> None:
        super().__init__(config)
        self._left = config.leave_gpus

    def connect(self, *, cpus: int, gpus: int, remove: Callable[[Path], None]) -> None:
        """`gpus`: those of this machine."""
        super().connect(cpus=cpus, gpus=max(0, gpus - self._left), remove=remove)
