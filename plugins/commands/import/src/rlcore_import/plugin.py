"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import hookimpl
from rlcore_import.command import import_runs


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `import`."""
    yield import_runs
