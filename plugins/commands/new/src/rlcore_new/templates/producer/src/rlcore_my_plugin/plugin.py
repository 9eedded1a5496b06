"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_producers() -> Iterable[Component]:
    """The producer."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.producer:MyPlugin",
        summary="in turns, handing on the groups whose rewards differ most",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
