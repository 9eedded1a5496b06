"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import ForeignSetting, hookimpl
from rlcore_import.command import import_runs


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `import`."""
    yield import_runs


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """slime's flags, from the table that `rlcore import slime` reads."""
    from rlcore_import.slime.translate import table

    for flag, setting in table().settings():
        yield ForeignSetting(
            framework="slime",
            name=flag.replace("-", "_"),
            setting=setting,
            command=f"rlcore import slime --{flag}",
        )
