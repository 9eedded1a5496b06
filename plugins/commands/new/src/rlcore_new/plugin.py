"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The command `new`."""
    yield Component(
        name="new",
        factory="rlcore_new.command:new",
        summary="Make the folder rlcore-NAME: a package with a plugin of KIND that works, typed and tested.",
    )
