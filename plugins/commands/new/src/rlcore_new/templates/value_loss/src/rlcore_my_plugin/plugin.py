"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_value_losses() -> Iterable[Component]:
    """The critic's loss."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.value_loss:MyPlugin",
        summary="Huber's loss: squared up to delta, straight beyond",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
