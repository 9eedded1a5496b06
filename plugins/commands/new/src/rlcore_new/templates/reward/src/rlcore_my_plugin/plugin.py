"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_rewards() -> Iterable[Component]:
    """The reward."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.reward:MyPlugin",
        summary="1 for an answer without tokens, falling to 0 at the target length",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
