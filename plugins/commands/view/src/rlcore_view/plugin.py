"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import hookimpl
from rlcore_view.command import report, view


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The commands `view` and `report`."""
    yield view
    yield report
