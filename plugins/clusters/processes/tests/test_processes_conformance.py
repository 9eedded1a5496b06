"""`processes` keeps the contract of clusters."""

import psutil

from rlcore import Cluster, Part
from rlcore_processes.config import ProcessesConfig
from rlcore_testing.clusters import ClusterConformance


class TestProcesses(ClusterConformance):
    part = Part(name="processes", factory="rlcore_processes.cluster:ProcessCluster", config=ProcessesConfig())

    def own_processes(self, cluster: Cluster) -> list[int]:
        return [
            one.pid for one in psutil.Process().children() if "rlcore.fork_server" in " ".join(one.cmdline())
        ]
