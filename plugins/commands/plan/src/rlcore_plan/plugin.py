"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import hookimpl
from rlcore_plan.command import plan


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `plan`."""
    yield plan
