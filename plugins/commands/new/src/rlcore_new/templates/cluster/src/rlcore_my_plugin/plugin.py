"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_clusters() -> Iterable[Component]:
    """The cluster."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.cluster:MyPlugin",
        summary="processes of this machine, which leave GPUs to others",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
