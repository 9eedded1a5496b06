"""The cluster has no settings."""

import platform
from collections.abc import Iterable, Sequence

from rlcore import ClusterConfig, Neighbor, RunConfig


class ProcessesConfig(ClusterConfig):
    """It works on Linux, whose sockets it uses."""

    def complaints(self, name: str, run: RunConfig, neighbors: Sequence[Neighbor]) -> Iterable[str]:
        if platform.system() != "Linux":
            yield f"--cluster: found {name}, which works on Linux only; choose another one."
