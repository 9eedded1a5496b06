"""What this package offers."""

import sys
from collections.abc import Iterable

from rlcore import Component, ForeignSetting, hookimpl
from rlcore_toolkit import has_gpu


@hookimpl
def rlcore_clusters() -> Iterable[Component]:
    """The cluster, the default on GPUs, and where `processes` does not work."""
    yield Component(
        name="ray",
        factory="rlcore_ray.cluster:RayCluster",
        summary="a Ray of the run's own, or the one at --cluster.address",
        config="rlcore_ray.config:RayConfig",
        default=has_gpu() or sys.platform != "linux",
    )


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """What chose the cluster before there were several."""
    yield ForeignSetting(
        framework="rlcore before 0.1",
        name="ray_address",
        hint="use --cluster.address for the address of a Ray, and --cluster processes in place of none",
    )
