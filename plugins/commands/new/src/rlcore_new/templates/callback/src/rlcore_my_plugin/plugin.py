"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_callbacks() -> Iterable[Component]:
    """The callback."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.callback:MyPlugin",
        summary="ends the run after some minutes, with an evaluation and a checkpoint",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
