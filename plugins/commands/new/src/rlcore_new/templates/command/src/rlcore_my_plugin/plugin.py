"""What this package offers to rlcore."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The command."""
    yield Component(
        name="my-plugin",
        factory="rlcore_my_plugin.command:my_plugin",
        summary="Show in which step of the folder RUN a metric was best.",
    )
