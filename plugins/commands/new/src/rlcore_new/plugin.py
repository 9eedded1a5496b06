"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import hookimpl
from rlcore_new.command import new


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `new`."""
    yield new
