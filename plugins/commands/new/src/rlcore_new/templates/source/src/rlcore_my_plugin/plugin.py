"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Source, hookimpl


@hookimpl
def rlcore_sources() -> Iterable[Source]:
    """The task."""
    yield Source(
        name="my_plugin",
        factory="rlcore_my_plugin.source:MyPlugin",
        summary="digits in, the largest of them out",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
