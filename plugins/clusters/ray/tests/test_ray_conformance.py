"""`ray` keeps the contract of clusters, whoever has imported Ray before."""

import ipaddress
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
import ray  # noqa: F401  before a run sets what Ray reads at its import

from rlcore import Cluster, Part
from rlcore_ray.config import RayConfig
from rlcore_testing.clusters import ClusterConformance


@pytest.mark.full
@pytest.mark.timeout(600)
class TestRay(ClusterConformance):
    part = Part(name="ray", factory="rlcore_ray.cluster:RayCluster", config=RayConfig())

    def own_processes(self, cluster: Cluster) -> list[int]:
        return [child.pid for child in psutil.Process().children() if child.name() == "raylet"]

    def test_it_listens_on_the_loopback_alone(self) -> None:
        with self._connected():
            addresses = {
                connection.laddr.ip.removeprefix("::ffff:")
                for process in psutil.Process().children(recursive=True)
                for connection in _connections(process)
                if connection.status == psutil.CONN_LISTEN
            }
        assert addresses
        assert all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses

    # Each of these has a Ray of its own, so they come after those that share one.

    def test_the_end_of_a_process_of_its_own_is_told(self) -> None:
        super().test_the_end_of_a_process_of_its_own_is_told()

    @pytest.mark.full
    def test_a_process_of_its_own_that_is_stopped_is_told(self) -> None:
        super().test_a_process_of_its_own_that_is_stopped_is_told()

    def test_nothing_is_left_of_it(self) -> None:
        super().test_nothing_is_left_of_it()


def _connections(process: psutil.Process) -> Sequence[Any]:
    try:
        return process.net_connections("inet")
    except psutil.NoSuchProcess:  # one of a test before this one, which has just ended
        return ()
