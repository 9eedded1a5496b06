"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_corrections() -> Iterable[Component]:
    """The correction."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.correction:MyPlugin",
        summary="weight exp(-rate · |log-ratio|) of trainer to engine",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
