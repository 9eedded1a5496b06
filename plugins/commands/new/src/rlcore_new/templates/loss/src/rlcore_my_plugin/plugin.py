"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_losses() -> Iterable[Component]:
    """The loss."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.loss:MyPlugin",
        summary="a policy gradient whose ratio of new to old policy has a ceiling",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
