"""What this package offers to rlcore."""

from collections.abc import Iterable

import click
from rlcore import hookimpl

from rlcore_my_plugin.command import my_plugin


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command."""
    yield my_plugin
