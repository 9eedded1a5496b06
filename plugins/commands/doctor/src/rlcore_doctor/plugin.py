"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import hookimpl
from rlcore_doctor.command import doctor


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `doctor`."""
    yield doctor
