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
    """slime's flags, as `rlcore import slime` translates them, and the settings of TRL, verl and prime-rl."""
    from rlcore_import.comparison import FRAMEWORKS, hints
    from rlcore_import.slime.translate import table

    for rule in table().rules.values():
        yield ForeignSetting(
            framework="slime",
            name=rule.flag.replace("-", "_"),
            setting=rule.setting,
            hint=rule.unit,
            command=f"rlcore import slime --{rule.flag}",
        )
    for file, framework in FRAMEWORKS.items():  # theirs follow, because some of their hints are long
        for name, hint in hints(file):
            yield ForeignSetting(framework=framework, name=name, hint=hint)
