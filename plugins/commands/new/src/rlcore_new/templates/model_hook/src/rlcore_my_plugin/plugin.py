"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_model_hooks() -> Iterable[Component]:
    """The model hook."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.hook:MyPlugin",
        summary="leaves parameters as they are, by a word in their names",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
