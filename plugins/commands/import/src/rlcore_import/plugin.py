"""What this package offers."""

from collections.abc import Iterable

import click

from rlcore import ForeignSetting, hookimpl
from rlcore_import.command import import_runs
from rlcore_import.frameworks import FRAMEWORKS


@hookimpl
def rlcore_commands() -> Iterable[click.Command]:
    """The command `import`."""
    yield import_runs


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """The settings of the frameworks whose runs are translated, and those of prime-rl."""
    from rlcore_import.comparison import COMPARED, hints

    for command, framework in FRAMEWORKS.items():
        for rule in framework().table().rules.values():
            yield ForeignSetting(
                framework=framework().name,
                name=rule.flag.replace("-", "_"),
                setting=rule.setting,
                hint=rule.unit,
                command=f"rlcore import {command} {framework().prefix}{rule.flag}",
            )
    for file, name in COMPARED.items():
        yield from (ForeignSetting(framework=name, name=theirs, hint=hint) for theirs, hint in hints(file))
