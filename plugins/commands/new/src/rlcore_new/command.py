"""`rlcore new`: a complete package of a plugin, of any kind."""

import re
from pathlib import Path

import click

from rlcore import ConfigError, did_you_mean
from rlcore_cli.program import Program
from rlcore_new.package import kinds, licenses, write_package

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MOST_LETTERS = 24
"""The longest name: lines of code that hold it stay short enough."""


@click.command(epilog=f"Kinds: {', '.join(kinds())}.")
@click.argument("kind")
@click.argument("name")
@click.option(
    "--license",
    "license_name",
    default="Apache-2.0",
    show_default=True,
    type=click.Choice(licenses()),
    help="SPDX name of the package's license.",
)
@click.pass_context
def new(context: click.Context, kind: str, name: str, license_name: str) -> None:
    """Make the folder rlcore-NAME: a package with a plugin of KIND that works, typed and tested."""
    kind = kind.replace("-", "_")
    if kind not in kinds():
        names = ", ".join(kinds())
        hint = did_you_mean(kind, kinds())
        raise ConfigError(f"new: found the kind {kind!r}, expected one of {names}.{hint}")
    if not NAME.fullmatch(name) or len(name) > MOST_LETTERS:
        raise ConfigError(
            f"new: found the name {name!r}, expected at most {MOST_LETTERS} lower-case letters and digits, "
            "with a letter first and single underscores between words."
        )
    _check_free(context, kind, name)
    folder = Path(f"rlcore-{name.replace('_', '-')}")
    if folder.exists():
        raise ConfigError(f"new: {folder} exists already; take another name, or move it away.")
    write_package(kind, name, license_name, folder)
    click.echo(f"made {folder}, a plugin of the kind {kind}; next:")
    click.echo(f'  cd {folder} && pip install -e ".[dev]"')
    click.echo("  ruff check . && mypy && pytest")


def _check_free(context: click.Context, kind: str, name: str) -> None:
    """Nothing that is installed has the name: one of the two could not be used."""
    program, root = context.find_object(Program), context.find_root().command
    assert program is not None, "the command runs inside the rlcore program"
    owners = {info.name: str(info) for info in program.plugins.infos}
    owners |= {
        entry.record.name: str(entry.provider)
        for entry in program.plugins.registry.entries()
        if entry.kind == kind
    }
    if kind == "command" and isinstance(root, click.Group):
        owners |= dict.fromkeys(root.commands, "a command that is installed")
    if name in owners:
        raise ConfigError(f"new: the name {name!r} is taken by {owners[name]}; take another.")
