"""What this package offers."""

from collections.abc import Iterable

from rlcore import Component, ForeignSetting, hookimpl


@hookimpl
def rlcore_commands() -> Iterable[Component]:
    """The command `import`."""
    yield Component(
        name="import",
        factory="rlcore_import.command:import_runs",
        summary="Turn the flags of another framework's run into a TOML for rlcore train --config.",
    )


@hookimpl
def rlcore_foreign_settings() -> Iterable[ForeignSetting]:
    """The settings of the frameworks whose runs are translated, and those of prime-rl."""
    from rlcore_import.comparison import COMPARED, hints
    from rlcore_import.frameworks import FRAMEWORKS

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
