"""`processes` keeps the contract of clusters."""

from rlcore import Cluster, Part
from rlcore_processes.cluster import ProcessCluster
from rlcore_processes.config import ProcessesConfig
from rlcore_testing.clusters import ClusterConformance


class TestProcesses(ClusterConformance):
    part = Part(name="processes", factory="rlcore_processes.cluster:ProcessCluster", config=ProcessesConfig())

    def own_processes(self, cluster: Cluster) -> list[int]:
        # by its pid: other tests of this process have fork servers too
        assert isinstance(cluster, ProcessCluster)
        return [cluster._forks.pid]
