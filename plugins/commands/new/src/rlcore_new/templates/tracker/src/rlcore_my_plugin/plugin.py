"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trackers() -> Iterable[Component]:
    """The tracker."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.tracker:MyPlugin",
        summary="one metric as a CSV file in the run's folder",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
