"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl
from rlcore_processes.config import ProcessesConfig


@hookimpl
def rlcore_clusters() -> Iterable[Component]:
    """The cluster."""
    yield Component(
        name="processes",
        factory="rlcore_processes.cluster:ProcessCluster",
        summary="processes of this machine; there is no Ray to wait for",
        config=ProcessesConfig,
    )
