"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_advantages() -> Iterable[Component]:
    """The advantage estimator."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.advantage:MyPlugin",
        summary="the reward above the median of its group",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
