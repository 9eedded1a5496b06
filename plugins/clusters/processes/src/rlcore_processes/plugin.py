"""What this package offers."""

import sys
from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_toolkit import has_gpu


@hookimpl
def rlcore_clusters() -> Iterable[Component]:
    """The cluster, the default on Linux without a GPU."""
    yield Component(
        name="processes",
        factory="rlcore_processes.cluster:ProcessCluster",
        summary="processes of this machine; there is no Ray to wait for",
        config="rlcore_processes.config:ProcessesConfig",
        default=sys.platform == "linux" and not has_gpu(),
    )
