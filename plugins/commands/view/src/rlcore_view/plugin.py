"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The commands `view` and `report`."""
    yield Component(
        name="view",
        factory="rlcore_view.command:view",
        summary="Show runs in the browser, while they go on or afterwards. It needs only their folders.",
    )
    yield Component(
        name="report",
        factory="rlcore_view.command:report",
        summary="Write the page of runs as one HTML file that needs no server and no network.",
    )
