"""The cluster keeps what rlcore promises of clusters, and leaves GPUs to others."""

from pathlib import Path

import pytest
from rlcore import ConfigError, Part
from rlcore_testing.clusters import ClusterConformance

from rlcore_my_plugin.cluster import MyPlugin
from rlcore_my_plugin.config import MyPluginConfig


class TestMyPlugin(ClusterConformance):
    part = Part(
        name="my_plugin",
        factory="rlcore_my_plugin.cluster:MyPlugin",
        config=MyPluginConfig(leave_gpus=0),
    )


def test_gpus_are_left_to_others() -> None:
    cluster = MyPlugin(MyPluginConfig(leave_gpus=3))
    cluster.connect(cpus=1, gpus=4, remove=_nothing)
    assert cluster.devices(cluster.place([{"CPU": 1.0, "GPU": 1.0}], "The worker")) == [("0",)]
    with pytest.raises(ConfigError, match="need 2 GPUs, and this machine has 1"):
        cluster.place([{"CPU": 1.0, "GPU": 2.0}], "The workers")


def _nothing(folder: Path) -> None:
    """It makes no folder."""
