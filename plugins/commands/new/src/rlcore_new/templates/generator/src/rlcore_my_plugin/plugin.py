"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_generators() -> Iterable[Component]:
    """The generator."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.generator:MyPlugin",
        summary="one answer to each prompt, asked for again where it was cut",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
