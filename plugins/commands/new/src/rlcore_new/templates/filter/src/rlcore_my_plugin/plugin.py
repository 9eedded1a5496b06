"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_filters() -> Iterable[Component]:
    """The filter."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.filter:MyPlugin",
        summary="drops a group whose answers have too few tokens on average",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
