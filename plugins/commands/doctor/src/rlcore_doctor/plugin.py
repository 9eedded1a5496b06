"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The command `doctor`."""
    yield Component(
        name="doctor",
        factory="rlcore_doctor.command:doctor",
        summary="Say whether this machine has what a run needs: each line is ok, or says what to do.",
    )
