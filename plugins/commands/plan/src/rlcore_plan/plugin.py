"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The command `plan`."""
    yield Component(
        name="plan",
        factory="rlcore_plan.command:plan",
        summary="Say how a model trains on your GPUs: which layouts and engines fit, and why others do not.",
    )
