"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_engines() -> Iterable[Component]:
    """The engine."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.engine:MyPlugin",
        summary="the local server at a low priority",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
