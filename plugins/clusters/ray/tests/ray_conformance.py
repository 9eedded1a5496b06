"""`ray` keeps the contract of clusters."""

import psutil
import pytest

from rlcore import Cluster, Part
from rlcore_ray.config import RayConfig
from rlcore_testing.clusters import ClusterConformance


@pytest.mark.timeout(600)
class TestRay(ClusterConformance):
    part = Part(name="ray", factory="rlcore_ray.cluster:RayCluster", config=RayConfig())

    def own_processes(self, cluster: Cluster) -> list[int]:
        return [child.pid for child in psutil.Process().children() if child.name() == "raylet"]
