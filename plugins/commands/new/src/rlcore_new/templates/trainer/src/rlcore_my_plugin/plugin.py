"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_trainers() -> Iterable[Component]:
    """The trainer."""
    yield Component(
        name="my_plugin",
        factory="rlcore_my_plugin.trainer:MyPlugin",
        summary="one rank, a model of transformers, AdamW",
        config="rlcore_my_plugin.config:MyPluginConfig",
    )
